-- Returns ended leases of a time shard, and clears consumed messages away. The script looks at each
-- message again, and leaves alone what has changed since the caller's look. Returns { how many
-- messages wait again, how many were set aside, how many were cleared }. A void entry counts as
-- cleared. The first write removes something, so a full server allows the later ones.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] leased
--   KEYS[4] messages
--   KEYS[5] history
--   KEYS[6] consumed
--   KEYS[7] released
--   KEYS[8] dead
--   ARGV[1] the caller's mark
--   ARGV[2] from how many attempts on a message is set aside
--   ARGV[3] 1 to change nothing, else 0
--   ARGV[4..] ids with an `i` before each, and entries of released with an `r` before each
--@include settle
--@include clock
local mark, waiting, leased, messages, history, consumed, released, dead = unpack(KEYS)
local problem = refuse(mark, ARGV[1], KEYS, KINDS)
if problem then
  return problem
end
local most, is_dry = tonumber(ARGV[2]), ARGV[3] == '1'
local time = now()
local instant = string.format('%.0f', time)
-- An extended message stays with its holder, and counts as no work.
local counts = { cleared = 0, returned = 0, buried = 0, extended = 0, unbelieved = 0 }

local function count(fate)
  counts[fate] = counts[fate] + 1
end

local function sweep_release(entry)
  local due = redis.call('ZSCORE', released, entry)
  if due then
    local found = read_release(waiting, leased, history, consumed, released, entry)
    if found == false or not is_moment(released, due) then
      count('unbelieved')
      return
    end
    count(found and 'returned' or 'cleared')
    if not is_dry then
      settle_release(waiting, leased, history, consumed, released, entry, due)
    end
  end
end

local function sweep_ended(id)
  if is_dry then
    local fate = fate_of(history, consumed, released, id, instant, most)
    count(fate == 'ended' and 'returned' or fate)
    return
  end
  local fate, due = settle_ended(waiting, leased, messages, history, consumed, released, dead, id, instant, most)
  if fate == 'ended' then
    redis.call('ZREM', leased, id)
    redis.call('ZADD', waiting, due, id)
    fate = 'returned'
  end
  count(fate)
end

for i = 4, #ARGV do
  local kind, name = string.sub(ARGV[i], 1, 1), string.sub(ARGV[i], 2)
  if kind == 'r' then
    sweep_release(name)
  else
    local ends = redis.call('ZSCORE', leased, name)
    if ends and not is_moment(leased, ends) then
      count('unbelieved')
    elseif ends and tonumber(ends) <= time then
      sweep_ended(name)
    elseif redis.call('SISMEMBER', consumed, name) == 1 then
      count('cleared')
      if not is_dry then
        clear(waiting, leased, messages, history, consumed, released, dead, name)
      end
    end
  end
end
if unbelieved and counts.returned + counts.buried + counts.cleared == 0 then
  return unbelieved
end
return { counts.returned, counts.buried, counts.cleared }
