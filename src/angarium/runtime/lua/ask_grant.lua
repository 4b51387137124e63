#!lua
-- Guarantee: one holder has the role from its grant until the end of the longer of two periods.
-- KEYS: 3 work period, 4 grace period

-- ARGV: 4 holder, 5 work_ms, 6 grace_ms (longer than work_ms)
-- Returns: {'granted'} | {'working'} | {'grace'} | {'refused'}
-- Events: granted (module lease)
-- Repeats: safe, the second call answers 'working'
-- include: transition
-- include: grant
local status = ask_grant(KEYS[3], KEYS[4], ARGV[4], ARGV[5], ARGV[6])
if status == 'granted' then note('granted', KEYS[3], { n = ARGV[4] }) end
journal_append('lease')
return { status }
