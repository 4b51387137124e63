-- The role that leases work, by the two-key grant. Needs `grant`.
--   holder_state  ''         leased work may be open: the grace period applies
--                 'idle'     no work is open and all results are reported: no grace period
--                 'leaving'  idle, and the caller gives the role up
local function ask_role(work_key, grace_key, holder, work_ms, grace_ms, holder_state)
  if (holder_state == 'idle' or holder_state == 'leaving')
    and redis.call('GET', grace_key) == holder
    and (holder_state == 'leaving' or redis.call('EXISTS', work_key) == 0) then
    redis.call('DEL', work_key, grace_key)
  end
  if holder_state == 'leaving' then return 'refused' end
  return ask_grant(work_key, grace_key, holder, work_ms, grace_ms)
end
