-- The role of the one who is handed work, by the two-key grant. Needs `grant`.
--   hand  ''         something may still be in hand: the grace is waited for
--         'idle'     nothing is in hand and all is reported: no grace is needed, the role is free
--         'leaving'  the same, and the caller does not want the role again
local function ask_role(work_key, grace_key, holder, work_ms, grace_ms, hand)
  if (hand == 'idle' or hand == 'leaving') and redis.call('GET', grace_key) == holder
    and (hand == 'leaving' or redis.call('EXISTS', work_key) == 0) then
    redis.call('DEL', work_key, grace_key)
  end
  if hand == 'leaving' then return 'refused' end
  return ask_grant(work_key, grace_key, holder, work_ms, grace_ms)
end
