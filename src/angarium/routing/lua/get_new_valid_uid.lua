#!lua
-- Guarantee: returns instances in turn; a stale one only when there is no other.
-- Events: none
-- Repeats: no, each call moves the turn on
-- include: transition
-- include: attempts
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
-- include: assignment
return each_item(function(turns)
  local found = {}
  for turn = 1, turns do found[turn] = get_new_valid_uid() end
  return reply.turns(found)
end)
