#!lua
-- Guarantee: returns instances in turn; a stale one only when there is no other.
-- KEYS: 3 counts, 4 iterator, 5 keys by instance, 6 owners, 7 last access, 8 mail
-- ARGV: 4-8 as in include/layout_native; 9 how many
-- Returns: a uid for each turn; none when no instance is registered
-- Events: none
-- Repeats: no, each call moves the turn on
-- include: transition
-- include: layout_native
-- include: layout_acapy
-- include: assignment
local found = {}
for turn = 1, tonumber(ARGV[9]) do found[turn] = get_new_valid_uid() end
return found
