#!lua
-- Guarantee: removes a token's hash; API processes refuse the token once they have read the hashes.
-- Events: token_revoked, with the beginning of the hash as the subject (module runtime)
-- Repeats: safe
-- include: transition
if redis.call('HDEL', tokens_key, sha256) == 0 then return reply.unknown end
note('token_revoked', string.sub(sha256, 1, 12))
journal_append('runtime')
return reply.revoked
