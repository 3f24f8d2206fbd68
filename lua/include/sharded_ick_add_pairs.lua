-- add_marked(list): adds score, member, ... to an ick shard unless the caller's layout is out of
-- date. Returns { new members, members whose score became lower }, nil if it is, or an error reply.
--   KEYS[4] the mark; ARGV[1] the caller's
--@include sharded_ick_mark
--@include ick_add_pairs
local function add_marked(list)
  local problem, state = mark_state(KEYS[4], ARGV[1])
  if problem or state == 'newer' then
    return problem or false
  end
  local reply = add_pairs(list)
  if state == 'older' and not reply.err then
    redis.call('SET', KEYS[4], ARGV[1])
  end
  return reply
end
