-- Adds an event to a ledger's.
--   KEYS[1] events
--   ARGV[1] kind
--   ARGV[2] subject
--   ARGV[3] text
--   ARGV[4] host
--   ARGV[5] user
--   ARGV[6] ms since it happened
--   ARGV[7] how often
--   ARGV[8] 1 if it is one with others of its kind and subject within a minute (else 0)
--   ARGV[9] how many events are kept
--   ARGV[10] for how many seconds
-- Returns 1, or an error reply; then nothing was changed.
--@include events
local problem = refuse_events(KEYS[1])
if problem then
  return problem
end
local event = { kind = ARGV[1], subject = ARGV[2], text = ARGV[3], host = ARGV[4], user = ARGV[5] }
local refused = add_event(KEYS[1], event, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1', ARGV[9], ARGV[10])
return refused or 1
