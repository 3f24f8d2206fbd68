-- Claims a dedupe key for a message that is about to be put: writes its note, unless that says another message.
-- Sent twice, it does the same.
--   KEYS[1] the note, a string: `id claimed until`: the message, when it was claimed, until when the key holds
--   ARGV[1] the id of the message
--   ARGV[2] the id that the note may say, because that message is not there and never comes; or ''
--   ARGV[3] for how many ms the key holds
-- Returns { the id that the note says now, the server's time in ms, for how many ms it has said that (a minute if
-- the clock was set back since), 1 if the key holds no more, else 0 }.
--@include clock
--@include values
--@include stored
local problem = refuse_key('STRLEN', KEYS[1], 'the note of a dedupe key')
if problem then
  return problem
end
local time = now()
local found = redis.call('GET', KEYS[1])
if found then
  local id, claimed, ends = string.match(found, '^(%d+%-%x+) (%d+) (%d+)$')
  claimed = stored(KEYS[1], 'the time of a claim', claimed, 0, MOST_STORED)
  ends = stored(KEYS[1], 'the end of a claim', ends, 0, MOST_STORED)
  if unbelieved then
    return unbelieved
  end
  if id ~= ARGV[1] and id ~= ARGV[2] then
    -- Nobody waits for a clock that was set back to come up to the claim.
    return { id, time, time < claimed and UNDER_WAY_MS or time - claimed, ends <= time and 1 or 0 }
  end
end
-- The put may be under way for so long after the key holds no more.
local note = ARGV[1] .. ' ' .. whole(time) .. ' ' .. whole(time + ARGV[3])
local reply = redis.pcall('SET', KEYS[1], note, 'PX', whole(ARGV[3] + UNDER_WAY_MS))
if is_error(reply) then
  return reply
end
return { ARGV[1], time, 0, 0 }
