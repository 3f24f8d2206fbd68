--@library
-- The notification that wakes the sleeping readers of a queue.

-- Wakes every sleeping reader. Returns the reply, which may be an error. Only the last notification
-- counts. The stream keeps a few more, because to keep exactly one the server would pass over some fifty
-- deleted ones at each call.
local function notify(notifications, number)
  return redis.pcall('XADD', notifications, 'MAXLEN', '~', 1, '*', 's', number)
end
