-- Changes a job's settings in the whole fleet, and notes who did it, in one step. On a full server a removal
-- is done without a note, and so is any change by a user who may not write events.
--   KEYS[1] settings
--   KEYS[2] events
--   ARGV[1] kind
--   ARGV[2] subject
--   ARGV[3] host
--   ARGV[4] user
--   ARGV[5] how many events are kept
--   ARGV[6] for how many seconds
--   ARGV[7] a field that is written with any setting and stays, which tells of a loss
--   ARGV[8..] field and value ('': none any more) of each setting
-- Returns the number of fields that are others now and why that was not noted ('' if it was), or an error
-- reply; then nothing was changed.
--@include events
local problem = refuse_key('HLEN', KEYS[1], 'the settings of a fleet')
if problem then
  return problem
end
local told, changes = {}, 0
-- On a full server a removal does without it.
redis.pcall('HSET', KEYS[1], ARGV[7], 1)
for i = 8, #ARGV, 2 do
  local before, value = redis.call('HGET', KEYS[1], ARGV[i]) or '', ARGV[i + 1]
  if before ~= value then
    local written = value == '' and redis.pcall('HDEL', KEYS[1], ARGV[i]) or redis.pcall('HSET', KEYS[1], ARGV[i], value)
    if is_error(written) then
      return written
    end
    changes = changes + 1
    told[changes] = (before == '' and 'none' or before) .. ' -> ' .. (value == '' and 'none' or value)
  end
end
if changes == 0 then
  return { 0, '' }
end
local event = { kind = ARGV[1], subject = ARGV[2], text = table.concat(told, ', '), host = ARGV[3], user = ARGV[4] }
problem = refuse_events(KEYS[2]) or add_event(KEYS[2], event, 0, 1, false, ARGV[5], ARGV[6])
return { changes, problem and tostring(problem.err) or '' }
