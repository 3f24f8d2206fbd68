-- Deletes some of the messages of one account that wait, or are delayed; those in flight stay.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] account
--   ARGV[2] where to go on among the delayed, '' for those that wait, 'delayed' at first
--   ARGV[3] how many at most
--   ARGV[4] 1 to notify
-- Returns { deleted, where to go on among the delayed; '' for more that wait,
-- 'delayed' for the first of them, '0' at the end }.
--@include serving
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local account, cursor, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = now()
local facts = facts_of(KEYS, found, 1, at)
local a = account_of(KEYS, account)
if unbelieved or not a then
  return unbelieved or { 0, '0' }
end
begin_on_full(KEYS)
local deleted, tag_before, s = 0, a.tag, settings_of(KEYS, facts, account, a)
local function delete(id)
  local text = redis.call('HGET', KEYS[MESSAGES], id)
  local m = text and parts_of_message(text)
  local d = m and delivery_of(KEYS, id)
  if m and m.account == account and not (d and d.is_flying) then
    take_out(KEYS, a, id, d)
    deleted = deleted + 1
  end
end
if cursor == '' then
  for _ = 1, most do
    local id = next_id(KEYS, a, s)
    if id then
      delete(id)
    end
  end
  cursor = (a.first < a.last or a.head < a.tail or a.head1 < a.tail1) and '' or 'delayed'
else
  local page = redis.call('ZSCAN', KEYS[PARKED], cursor == 'delayed' and '0' or cursor, 'COUNT', most)
  cursor = tostring(page[1])
  for i = 1, #page[2], 2 do
    delete(page[2][i])
  end
end
local wakes = settle_place(KEYS, facts, account, a, s, at, tag_before)
save_account(KEYS, account, a)
if wakes and ARGV[4] == '1' then
  notify(KEYS[NOTIFICATIONS], 'u')
end
return { deleted, cursor }
