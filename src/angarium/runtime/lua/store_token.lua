#!lua
-- Guarantee: stores a token by its hash, from which the token can't be computed. Also records that
-- the API has had tokens, which outlasts the last token.
-- Events: token_stored, with the beginning of the hash as the subject (module runtime)
-- Repeats: safe
-- include: transition
if redis.call('HLEN', tokens_key) >= tokens_max then return reply.full end
redis.call('HSET', tokens_key, sha256, record)
redis.call('HSETNX', seen_key, 'api', string.format('%.0f', now_ms))
note('token_stored', string.sub(sha256, 1, 12))
journal_append('runtime')
return reply.stored
