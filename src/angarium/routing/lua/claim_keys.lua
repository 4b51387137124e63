#!lua
-- Guarantee: the instance claims its keys that have messages, longest waiting first. A claimed key is
-- not returned again until it is finished; with `again` it is.
-- Events: none
-- Repeats: no, a call with `again` returns the keys of a lost reply
-- include: transition
-- include: session
-- include: layout_native
local claim_acapy
-- include: claim_keys
