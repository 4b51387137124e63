#!lua
-- Guarantee: removes a token's hash; API processes refuse the token once they have read the hashes.

-- KEYS: 3 tokens (hash: sha256 of the token -> its record as JSON)
-- ARGV: 4 sha256 in hexadecimal
-- Returns: {'revoked'} | {'unknown'}
-- Events: token_revoked, with the beginning of the hash as the subject (module runtime)
-- Repeats: safe
-- include: transition
if redis.call('HDEL', KEYS[3], ARGV[4]) == 0 then return { 'unknown' } end
note('token_revoked', string.sub(ARGV[4], 1, 12))
journal_append('runtime')
return { 'revoked' }
