#!lua
-- Guarantee: a switch set on a transaction that sleeps for it wakes it, once; on one that does not,
-- it is remembered, so that going to sleep for it can't miss it.
-- KEYS: 3 to 5 statistics, 6 sleeping, 7 stem of qOut; per item: state
-- ARGV: 4 notify, 5 work, 6 number of items; per item: id, switch, value
-- Returns: per item 'woken' | 'set' | 'finished' | 'no_state'
-- Events: switched, woken (room transactions)
-- Repeats: safe
-- include: transition
-- include: transactions
local statuses = {}
for item = 1, tonumber(ARGV[6]) do
  local at = 4 + 3 * item
  local id, switch, state = ARGV[at], ARGV[at + 1], KEYS[7 + item]
  local found = redis.call('HMGET', state, 'status', 'label', 'switches', 'unseen', 'switch')
  if not found[1] then
    statuses[item] = 'no_state'
  elseif FINAL[found[1]] then
    statuses[item] = 'finished'
  else
    local about = label(found[2])
    local switches = found[3] and cjson.decode(found[3]) or {}
    switches[switch] = ARGV[at + 2]
    redis.call('HSET', state, 'switches', cjson.encode(switches), 'updated', now_text,
      'more', 1)
    tell('switched', id, about, '"d":' .. cjson.encode(switch))
    if found[1] == 'sleeping' and found[5] == switch then
      redis.call('HSET', state, 'status', 'queued', 'queue', 'out')
      redis.call('ZREM', KEYS[6], id)
      push(KEYS[7] .. about.group, about.group, 'out', id)
      tell('woken', id, about)
      statuses[item] = 'woken'
    else
      local unseen = ' ' .. (found[4] or '') .. ' '
      if not string.find(unseen, ' ' .. switch .. ' ', 1, true) then
        redis.call('HSET', state, 'unseen', (found[4] and found[4] .. ' ' or '') .. switch)
      end
      statuses[item] = 'set'
    end
  end
end
settle()
return statuses
