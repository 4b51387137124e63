-- A lease with two windows: in the first the holder is given work, in the second nobody is, so
-- that the holder can finish and report before the role may go to another. No renewal.
--   'granted'  the role was free and is now this holder's
--   'working'  this holder has it and may ask for more
--   'grace'    this holder had it: finish and report, no more work
--   'refused'  another has it
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
