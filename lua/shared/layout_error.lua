--@library
-- layout_error(): the error reply about a key of ours that holds something foreign, or a newer layout.
local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end

-- Returns the error reply for a command on a key of ours that was refused: about a foreign key if that
-- is of another type; any other refusal, such as that of an ACL, is handed on as it is.
local function refused(reply, key, why)
  if string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
    return layout_error(key, why)
  end
  return reply
end
