-- The policy by which a server evicts, which a new structure must know.
--   KEYS[1] any key of the caller's, for the routing
-- Returns the policy, '' when the server does not say.
--@include info
local policy = policy_of()
return policy
