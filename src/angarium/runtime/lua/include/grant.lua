-- A lease with two periods: in the first the holder gets work; in the rest of the second nobody
-- does, so that the holder can finish and report before another takes the role. No renewal.
--   'granted'  the role was free and is now this holder's
--   'working'  this holder has the role and may ask for more work
--   'grace'    this holder gets no more work; it finishes and reports
--   'refused'  another holder has the role

local function ask_grant(work_key, grace_key, holder, work_ms, grace_ms)
  local owner = redis.call('GET', grace_key)
  if not owner then
    redis.call('SET', work_key, holder, 'PX', work_ms)
    redis.call('SET', grace_key, holder, 'PX', grace_ms)
    return 'granted'
  end
  if owner ~= holder then return 'refused' end
  if redis.call('GET', work_key) == holder then return 'working' end
  return 'grace'
end
