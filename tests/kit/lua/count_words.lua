#!lua
-- Guarantee: words are counted, up to a limit of different ones; long ones come back as rows.
-- Events: none
-- Repeats: no, a second call counts again
-- include: transition
if stopped then return reply.stopped end
local long, count = {}, 0
each_item(function(word, weight, list_key)
  count = count + weight
  redis.call('RPUSH', list_key, word)
  if #word > long_chars then
    long[#long + 1] = word
    long[#long + 1] = #word
  end
end)
redis.call('RPUSH', order_key, item_values(1, item_count))
redis.call('PUBLISH', news_channel, count)
return reply.counted(count, ratio * 2, long)
