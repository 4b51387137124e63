-- Whether another process has become this instance since.
local function superseded(uid, session)
  return (redis.call('HGET', sessions_key, uid) or '') ~= session
end
