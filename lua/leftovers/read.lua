-- Reads what a verdict rests on, and tells a digest of it.
--   KEYS[1..] the keys that are read
--   ARGV[1..] the commands, as commands() has them
-- Returns the replies, errors among them, and behind them their digest.
--@include commands
local replies = commands(ARGV, 1)
local proof = digest(replies)
replies[#replies + 1] = proof
return replies
