--@library
-- layout_error(): the error reply about a key of ours that holds something foreign, or a newer layout.
local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end

-- The error reply to a command on a key of ours that has failed: about the key, if that holds something foreign; else
-- the server's own, of a command that the user may not run for instance.
local function refusal(reply, key, why)
  -- Not a text in fakeredis.
  if reply.err and not string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
    return reply
  end
  return layout_error(key, why)
end
