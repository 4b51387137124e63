#!lua flags=no-writes
-- Guarantee: the number of replies that wait for a process with their sender, by required sender.
-- `most` limits the required senders of each kind.
-- Events: none
-- Repeats: safe
-- include: transition
-- include: conversation
return each_item(function(most)
  local rows, oldest_ms = {}, integer(now_ms - awaited_ttl)
  for _, kind in ipairs({ 'n', 'o' }) do
    for _, required in ipairs(redis.call('ZRANGE', waiting_stem .. kind, 0, most - 1)) do
      local set = waiting_stem .. required
      local number = redis.call('ZCOUNT', set, oldest_ms, '+inf')
      local first = redis.call('ZRANGE', set, oldest_ms, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
      if number > 0 then
        for _, value in ipairs({ required, number, first[2] }) do rows[#rows + 1] = value end
      end
    end
  end
  return reply.listed(integer(now_ms), rows)
end)
