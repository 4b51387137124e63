#!lua
-- Guarantee: pending archived messages are given to one caller, as pull_messages and take_messages
-- give those in Redis: oldest first, and the first one even if it alone is larger than bytes_max. The
-- caller read the rows when the queue's 'cleared' was as given. If it has changed, a row may belong
-- to a removed message.
-- KEYS: 3 due; then the six of the queue
-- ARGV: 4 queue, 5 term of the live session or '' for a taker, 6 sending_ms of a taker,
-- 7 messages_max, 8 bytes_max, 9 bytes that the first message may have, 10 'cleared' of the queue,
-- then rows by sequence: id, sequence, payload bytes
-- Returns: {'claimed', 1 if a limit was reached, when a taker's messages are pending again, id, …} |
-- {'again'} | {'lost'}
-- Events: sent (module pickup)
-- Repeats: no, a repeat does not return the messages of the first call
-- include: transition
-- include: queue
local queue, name, term = queue_at(4), ARGV[4], ARGV[5]
if term ~= '' and call('HGET', queue.meta, 'term') ~= term then return { 'lost' } end
if (call('HGET', queue.meta, 'cleared') or '') ~= ARGV[10] then return { 'again' } end
local due_ms = digits(now_ms + tonumber(ARGV[6]))
local messages_max, bytes_max, first_max = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local reply, claimed, bytes = { 'claimed', 0, due_ms }, 0, 0
for at = 11, #ARGV, 3 do
  local id = ARGV[at]
  -- Messages that are moving, removed or sent are not given.
  if call('HEXISTS', queue.messages, id) == 0 and call('SISMEMBER', queue.removed, id) == 0
    and not call('ZSCORE', queue.sending, id) then
    bytes = bytes + tonumber(ARGV[at + 2])
    if claimed == messages_max or bytes > (claimed == 0 and first_max or bytes_max) then
      reply[2] = 1
      break
    end
    claimed = claimed + 1
    reply[#reply + 1] = id
    local score = term ~= '' and digits(HELD + tonumber(ARGV[at + 1])) or due_ms
    call('ZADD', queue.sending, score, id)
    note_message('sent', id, name)
  end
end
if claimed > 0 then
  call('HINCRBY', queue.meta, 'held', claimed)
  if term == '' then call('ZADD', KEYS[3], 'LT', due_ms, name) end
end
journal_append('pickup')
return reply
