#!lua
-- Guarantee: staged rows move to the stream: in one step they leave their list and are entries.
-- A batch that is not under way is 'closed'. The stream keeps about `length_max` entries, 0 for all.
-- Events: none
-- Repeats: safe, a repeat goes on with what is left
if tonumber(redis.call('HGET', writer_key, 'batch') or -1) ~= batch then return reply.closed end
local rows = 0
for _ = 1, chunks_max do
  local chunk = redis.call('LPOP', staged_key)
  if not chunk then break end
  for _, fields in ipairs(cmsgpack.unpack(chunk)) do
    if length_max > 0 then
      redis.call('XADD', stream_key, 'MAXLEN', '~', length_max, '*', unpack(fields))
    else
      redis.call('XADD', stream_key, '*', unpack(fields))
    end
    rows = rows + 1
  end
end
return reply.appended(rows, redis.call('LLEN', staged_key))
