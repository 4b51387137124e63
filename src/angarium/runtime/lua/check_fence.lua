#!lua flags=no-writes
-- Guarantee: tells whether a term is still the newest; fenced writes make the same check.

-- KEYS: 3 term counter
-- ARGV: 4 term
-- Returns: {'current'} | {'stale'}
-- Events: none
-- Repeats: safe
-- include: transition
-- include: fence
if fenced_off(KEYS[3], ARGV[4]) then return { 'stale' } end
return { 'current' }
