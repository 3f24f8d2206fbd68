-- SET key value [NX | XX] [GET] [EX | PX | EXAT | PXAT time | KEEPTTL], for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   ARGV[1] mark
--   ARGV[2] value
--   ARGV[3..] the options as the command takes them
-- Returns OK, or nil when NX or XX is not met; with GET the value before, or nil.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at = now()
local words = { NX = 'condition', XX = 'condition', GET = 'get', KEEPTTL = 'time' }
local options, problem = read_options(ARGV, 3, words)
if problem then
  return problem
end
local wanted
wanted, problem = wanted_deadline(options, 'set', at)
if problem then
  return problem
end
local kind, deadline, found
problem, kind, deadline, found = refuse(key, due, mark, ARGV[1], at)
if problem then
  return problem
end
local before = options.GET and kind == 'string' and redis.call('GET', key)
if (options.NX and kind == 'string') or (options.XX and kind == 'none') then
  return before
end
if options.KEEPTTL then
  wanted = deadline
end
if wanted and wanted <= at then
  remove(key, due)
elseif wanted then
  problem = schedule(key, due, mark, ARGV[1], found, wanted)
  if problem then
    return problem
  end
  redis.call('SET', key, ARGV[2])
else
  local reply = redis.pcall('SET', key, ARGV[2])
  if reply.err then
    return reply
  end
  redis.call('ZREM', due, key)
end
if options.GET then
  return before
end
return redis.status_reply('OK')
