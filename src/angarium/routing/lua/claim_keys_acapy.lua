#!lua
-- Guarantee: the instance claims its keys that have messages, longest waiting first. A claimed key is
-- not returned again until it is finished; with `again` it is.
-- Events: none
-- Repeats: no, a call with `again` returns the keys of a lost reply
-- include: transition
-- include: attempts
-- include: session
-- include: layout_native
-- include: layout_native_rest
-- include: layout_acapy
local function claim_acapy(uid, keys_max)
  -- Other programs do not record which keys are ready: the counts show it.
  local found = {}
  for _, key in ipairs(layout.list(uid).keys) do
    if #found >= keys_max then break end
    if count_of(uid, key) >= 1 then
      found[#found + 1] = key
      newly_ready[#newly_ready + 1] = band(0, CLAIMED) + tick
      newly_ready[#newly_ready + 1] = key
    end
  end
  write_ready()
  return reply.claimed(found, {})
end
-- include: claim_keys
