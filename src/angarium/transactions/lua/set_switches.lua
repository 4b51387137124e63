#!lua
-- Guarantee: a switch wakes a transaction that sleeps until it is set, once. Otherwise the switch is
-- stored, so a later sleep until this switch ends at once.
-- KEYS: 3 to 5 statistics, 6 sleeping, 7 stem of qOut; per item: state
-- ARGV: 4 notify, 5 work, 6 maximum number of switches of a transaction, 7 number of items; per item:
-- id, switch, value
-- Returns: per item 'woken' | 'set' | 'too_many' | 'finished' | 'no_state'
-- Events: switched, woken (module transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local function is_full(switches)
  local count = 0
  for _ in pairs(switches) do count = count + 1 end
  return count >= tonumber(ARGV[6])
end

-- Stores the switch until the next dequeue gives it to a node.
local function remember(state, unseen, switch)
  if not string.find(' ' .. (unseen or '') .. ' ', ' ' .. switch .. ' ', 1, true) then
    redis.call('HSET', state, 'unseen', (unseen and unseen .. ' ' or '') .. switch)
  end
end

local function set(state, id, switch, value)
  local found = redis.call('HMGET', state, 'status', 'label', 'switches', 'unseen', 'switch')
  if not found[1] then return 'no_state' end
  if FINAL[found[1]] then return 'finished' end
  local about, switches = label(found[2]), found[3] and cjson.decode(found[3]) or {}
  if not switches[switch] and is_full(switches) then return 'too_many' end
  switches[switch] = value
  redis.call('HSET', state, 'switches', cjson.encode(switches), 'updated', now_text, 'more', 1)
  record_event('switched', id, about, '"d":' .. cjson.encode(switch))
  if found[1] ~= 'sleeping' or found[5] ~= switch then
    remember(state, found[4], switch)
    return 'set'
  end
  redis.call('HSET', state, 'status', 'queued', 'queue', 'out')
  redis.call('ZREM', KEYS[6], id)
  push(KEYS[7] .. about.group, about.group, id)
  record_event('woken', id, about)
  return 'woken'
end

local statuses = {}
for item = 1, tonumber(ARGV[7]) do
  local at = 5 + 3 * item
  statuses[item] = set(KEYS[7 + item], ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
write_batch()
return statuses
