-- make_log(): the facts of a log that has no entry yet.
--@include log

-- What tells this log from one of the same name that was deleted.
local function new_epoch()
  local clock = redis.call('TIME')
  return string.format('%010d%06d', clock[1], clock[2])
end

-- Returns the reply, which is an error where the server is full.
local function make_log(block, epoch)
  return redis.pcall('HSET', meta, 'mark', LOG_VERSION, 'block', block, 'next', '0', 'first', '0', 'kept', '0', 'epoch',
    epoch, 'joined', '0')
end
