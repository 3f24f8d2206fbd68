--@library
-- The events of a ledger: a stream, the newest last, bounded in number and time.
--@include clock
--@include layout
--@include values

-- So many of the newest ones are looked at for one of the same kind and subject.
local LOOKED_AT = 20
-- What several processes say within so many ms is one event.
local GROUPED_MS = 60000
-- The hosts that an event names; of the others, it says that there are more.
local HOSTS_NAMED = 5

local function refuse_events(key)
  return refuse_key('XLEN', key, 'the events of a ledger')
end

-- An entry of the stream as a table, by field.
local function fields_of_event(entry)
  local found = {}
  for i = 1, #entry[2], 2 do
    found[entry[2][i]] = entry[2][i + 1]
  end
  return found
end

-- The hosts of an event with one more, by commas; a last `...` stands for others.
local function with_host(hosts, host)
  local number = 0
  for each in string.gmatch(hosts, '[^,]+') do
    if each == host or each == '...' then
      return hosts
    end
    number = number + 1
  end
  if number >= HOSTS_NAMED then
    return hosts .. ',...'
  end
  return hosts == '' and host or hosts .. ',' .. host
end

-- Adds an event. Returns nothing, or an error reply; then nothing was changed.
-- event: kind, subject, text, host, user, all texts; ago: ms since it happened; count: how often; grouped: whether
-- one of the same kind and subject, of a moment ago, is this one too; most: how many events are kept; keep: for how many s.
local function add_event(key, event, ago, count, grouped, most, keep)
  local at = now() - ago
  local first, hosts, same = at, event.host, nil
  if grouped then
    for _, entry in ipairs(redis.call('XREVRANGE', key, '+', '-', 'COUNT', LOOKED_AT)) do
      local found = fields_of_event(entry)
      local last, began = tonumber(found.at), tonumber(found.first)
      if not same and last and began and found.kind == event.kind and found.subject == event.subject
        and math.abs(at - last) <= GROUPED_MS then
        same = entry[1]
        first = math.min(first, began)
        at = math.max(at, last)
        count = count + (tonumber(found.count) or 0)
        hosts = with_host(found.hosts or '', event.host)
      end
    end
  end
  local added = redis.pcall('XADD', key, 'MAXLEN', most, '*', 'kind', event.kind, 'subject', event.subject, 'text', event.text,
    'hosts', hosts, 'user', event.user, 'first', whole(first), 'at', whole(at), 'count', whole(count))
  if is_error(added) then
    return added
  end
  if same then
    redis.call('XDEL', key, same)
  end
  redis.call('EXPIRE', key, keep)
end
