#!lua
-- Guarantee: stores a token by its hash, from which the token can't be computed. Also records that
-- the API has had tokens, which outlasts the last token.

-- KEYS: 3 tokens (hash: sha256 of the token -> its record as JSON), 4 tokens seen (hash)
-- ARGV: 4 sha256 in hexadecimal, 5 record, 6 tokens_max
-- Returns: {'stored'} | {'full'}
-- Events: token_stored, with the beginning of the hash as the subject (module runtime)
-- Repeats: safe
-- include: transition
if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[6]) then return { 'full' } end
redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
redis.call('HSETNX', KEYS[4], 'api', string.format('%.0f', now_ms))
note('token_stored', string.sub(ARGV[4], 1, 12))
journal_append('runtime')
return { 'stored' }
