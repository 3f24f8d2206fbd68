--@library
-- note(): a line in the audit stream of the job that has called the script.

-- args: the number of the script's own arguments, these, then the stream's most entries, the ms after which it
-- ends, and the fields of the line. The last of the own arguments is the room: the most parts that the slice may
-- still remove, 1 or more.

-- The room, and the index of the argument before it.
local function room_of(args)
  local own = tonumber(args[1])
  return tonumber(args[own + 1]), own
end

-- Notes the removal of a number of parts, if there is any. Behind a delete a full server allows it.
local function note(audit, args, parts)
  if parts == 0 then
    return
  end
  local own = tonumber(args[1])
  local line = { unpack(args, own + 4) }
  line[#line + 1], line[#line + 2] = 'parts', parts
  redis.call('XADD', audit, 'MAXLEN', '~', args[own + 2], '*', unpack(line))
  redis.call('PEXPIRE', audit, args[own + 3])
end
