--@library
-- HSETEX, HGETEX and HMGET: of each the usual call as one run of commands, and any call.
--@include clock

-- A usual call says EX or PX, and no condition. A server makes each function of a script anew at each call, so the
-- functions of the unusual ones are made where they are needed. The two ways have one effect: a test drives both
-- through the same states. The usual one returns nothing, and has changed nothing, where something is unusual.

-- No write of deadlines needs the due index, if each field had an earlier deadline before: wherever a hash has
-- deadlines, the due index has the hash, at its earliest deadline or before. Every writer keeps this:
--   * A deadline is written behind schedule(), or ZADD LT of the same moment (hsetex, hgetex, hexpire, hstore, adopt,
--     hmovefield, take_back), or with the due moment of the hash that it comes from (copy, rename, fleet/carry_in).
--   * An entry of the due index is removed only with the key of the deadlines, or behind it (tidy() and its callers,
--     delete, expire, rename, migrate, fleet/carry_out, fleet/drop).
--   * It is raised by collectors alone, to the earliest deadline that is left; the job WATCHes the deadlines.
-- A hash that is gone keeps it too, so nobody inherits deadlines that the due index does not know. Whoever removes
-- the due index itself breaks it: then the next write of a field without a deadline mends it, or of several fields.

-- Gives one field a later deadline than it has. Returns 1; 0 if it has none or a later one, or an error reply; then
-- nothing was changed. The deadlines have the right type, unless it is an error.
local function raise_deadline(deadlines, field, score)
  return redis.pcall('ZADD', deadlines, 'XX', 'GT', 'CH', score, field)
end

-- Sets fields, and when they end. args: has field, value, ... from first to last.
-- Returns whether it is done.
local function set_usual(hash, deadlines, due, mark, expected, score, args, first, last)
  local size, left = redis.pcall('HLEN', hash), redis.call('PTTL', hash)
  if type(size) ~= 'number' or redis.pcall('GET', mark) ~= expected then
    return
  end
  if left == -1 and last == first + 1 then
    local raised = raise_deadline(deadlines, args[first], score)
    if raised == 1 then
      redis.call('HSET', hash, args[first], args[last])
      return true
    elseif raised ~= 0 then
      return
    end
  else
    local held = redis.pcall('ZCARD', deadlines)
    -- Where every field may be garbage, the hash may be gone, and a time to live of its own with it.
    if type(held) ~= 'number' or (left ~= -1 and size <= held and held > 0) then
      return
    end
  end
  if type(redis.pcall('ZADD', due, 'LT', score, hash)) ~= 'number' then
    return
  end
  local members, count = {}, 0
  for i = first, last, 2 do
    members[count + 1], members[count + 2] = score, args[i]
    count = count + 2
  end
  redis.call('ZADD', deadlines, unpack(members))
  redis.call('HSET', hash, unpack(args, first, last))
  return true
end

-- Reads fields of a hash of which nothing has expired. args: has the fields from first to last.
-- Returns their values.
local function read_usual(hash, deadlines, at, args, first, last)
  local values = redis.pcall('HMGET', hash, unpack(args, first, last))
  return not values.err and redis.pcall('ZCOUNT', deadlines, '-inf', at) == 0 and values
end

-- Reads fields, and sets when they end. args: has the fields from first to last.
-- Returns their values.
local function touch_usual(hash, deadlines, due, mark, expected, at, score, args, first, last)
  local values = read_usual(hash, deadlines, at, args, first, last)
  if not values or redis.pcall('GET', mark) ~= expected then
    return
  end
  if first == last and values[1] and raise_deadline(deadlines, args[first], score) == 1 then
    return values
  end
  local members, count = {}, 0
  for i = 1, #values do
    if values[i] then
      members[count + 1], members[count + 2] = score, args[first + i - 1]
      count = count + 2
    end
  end
  if count == 0 then
    -- Deadlines of a hash that is gone are not left beside it.
    local is_clean = redis.call('EXISTS', hash) == 1 or redis.call('EXISTS', deadlines) == 0
    return is_clean and type(redis.pcall('ZCARD', due)) == 'number' and values
  end
  if type(redis.pcall('ZADD', due, 'LT', score, hash)) == 'number' then
    redis.call('ZADD', deadlines, unpack(members))
    return values
  end
end

-- The arguments of a usual call as the command itself has them.
local function spelled_out(expected, ms, args, first, last)
  local list = { expected, 'PX', ms, 'FIELDS', '' }
  for i = first, last do
    list[#list + 1] = args[i]
  end
  return list
end

-- HSETEX. args: the mark, then the arguments in the command's own order. Returns its reply.
local function set_any(hash, deadlines, due, mark, args, at)
  --@include hash
  local options, problem = deadline_options(args, 'hsetex', at)
  if problem then
    return problem
  end
  problem = refuse(hash, deadlines, due, mark, args[1])
  if problem then
    return problem
  end
  local list, flags = arguments(args, options.first), options.flags
  local fields = fields_of(list)
  if flags.FNX or flags.FXX then
    drop_past(hash, deadlines, fields)
    for _, field in ipairs(fields) do
      local exists = redis.call('HEXISTS', hash, field) == 1
      if (exists and flags.FNX) or (not exists and flags.FXX) then
        return 0
      end
    end
  end
  if options.at then
    if is_past(options.at, at) then
      remove(hash, deadlines, fields)
      tidy(hash, deadlines, due)
      return 1
    end
    problem = schedule(due, hash, options.at)
    if problem then
      return problem
    end
    set_deadline(deadlines, fields, options.at)
  elseif flags.KEEPTTL then
    drop_past(hash, deadlines, fields)
  end
  set_values(hash, list)
  if not options.at and not flags.KEEPTTL then
    clear_deadline(deadlines, fields)
    tidy(hash, deadlines, due)
  end
  return 1
end

-- HGETEX with an option. args: as of set_any(). Returns its reply.
local function touch_any(hash, deadlines, due, mark, args, at)
  --@include hash
  local options, problem = deadline_options(args, 'hgetex', at)
  if problem then
    return problem
  end
  local gone = options.at and is_past(options.at, at)
  local schedules = options.at and not gone
  problem = refuse(hash, deadlines, due, mark, args[1], schedules)
  if problem then
    return problem
  end
  local fields, present, taken = fields_argument(args, 2), {}, {}
  local values = live_values(hash, deadlines, fields, at)
  for i, field in ipairs(fields) do
    if taken[field] then
      values[i] = false
    elseif values[i] then
      present[#present + 1] = field
      taken[field] = gone
    end
  end
  if #present == 0 then
    return schedules and refuse_due(due) or values
  end
  if schedules then
    problem = schedule(due, hash, options.at)
    if problem then
      return problem
    end
    set_deadline(deadlines, present, options.at)
    return values
  end
  if gone then
    remove(hash, deadlines, present)
  else
    clear_deadline(deadlines, present)
  end
  tidy(hash, deadlines, due)
  return values
end
