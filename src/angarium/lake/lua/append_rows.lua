#!lua
-- Guarantee: staged rows move to the stream: in one step they leave their list and are entries.
-- KEYS: 1 stream, 2 writer (hash), 3 staged list
-- ARGV: 1 batch, 2 chunks to move at most, 3 entries the stream keeps, about, or 0 for all
-- Returns: {'appended', rows, chunks left} | {'closed'} when this batch is not under way
-- Events: none
-- Repeats: safe, a repeat goes on with what is left
if redis.call('HGET', KEYS[2], 'batch') ~= ARGV[1] then return { 'closed' } end
local rows, length_max = 0, tonumber(ARGV[3])
for _ = 1, tonumber(ARGV[2]) do
  local chunk = redis.call('LPOP', KEYS[3])
  if not chunk then break end
  for _, fields in ipairs(cmsgpack.unpack(chunk)) do
    if length_max > 0 then
      redis.call('XADD', KEYS[1], 'MAXLEN', '~', length_max, '*', unpack(fields))
    else
      redis.call('XADD', KEYS[1], '*', unpack(fields))
    end
    rows = rows + 1
  end
end
return { 'appended', rows, redis.call('LLEN', KEYS[3]) }
