--@library
-- layout_error(): the error reply about a key of ours that holds something foreign, or a newer layout.
local function layout_error(key, why)
  return redis.error_reply('WSLAYOUT the key ' .. key .. ' ' .. why)
end
