-- What every script on a volatile hash shares: no more than that, since a server makes each function
-- of a script anew at each call.
--   KEYS[1] the user's hash: field -> value
--   KEYS[2] its deadlines, a sorted set: field -> milliseconds since the epoch
-- Fields without a deadline have no member in KEYS[2].
--@include now
local hash, deadlines = KEYS[1], KEYS[2]

-- The one rule of expiry: a field is gone from the millisecond of its deadline on.
local function is_past(deadline, at)
  return deadline and tonumber(deadline) <= at
end
