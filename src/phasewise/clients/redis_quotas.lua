-- Counts requests of one API key in Redis, with the arithmetic of scheduling/quota_book.py and Redis' own clock.
-- KEYS: requests, tokens: when that bucket is full again, in microseconds; absent when it is full.
--       leases: a sorted set of the running requests, by when each lease expires.
-- ARGV: the action, then its arguments. Costs are microseconds, 0 where there is no such limit.
local MINUTE = 60000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function full_at(key)
  return math.max(tonumber(redis.call('GET', key) or 0), now)
end

local function change(key, cost)
  if cost == 0 then return end
  local full = full_at(key) + cost
  if full <= now then
    redis.call('DEL', key)
  else
    -- tostring would write it as 1.8e+15.
    redis.call('SET', key, string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
  end
end

local function wait(key, cost)
  if cost == 0 then return 0 end
  return full_at(key) + math.min(cost, MINUTE) - MINUTE - now
end

local function hold(lease_ms, first)
  local lost_at = string.format('%.0f', now + lease_ms * 1000)
  for index = first, #ARGV do
    redis.call('ZADD', KEYS[3], lost_at, ARGV[index])
  end
  redis.call('PEXPIRE', KEYS[3], lease_ms)
end

-- take, request cost, token cost, slots (0: unlimited), lease duration in ms, lease
-- returns the wait for each bucket, and whether no slot is free
local function take()
  local request_cost, token_cost, slots = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
  local request_wait, token_wait, no_slot = wait(KEYS[1], request_cost), wait(KEYS[2], token_cost), 0
  if slots > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))
    if redis.call('ZCARD', KEYS[3]) >= slots then no_slot = 1 end
  end
  if request_wait <= 0 and token_wait <= 0 and no_slot == 0 then
    change(KEYS[1], request_cost)
    change(KEYS[2], token_cost)
    if slots > 0 then hold(tonumber(ARGV[5]), 6) end
  end
  return { request_wait, token_wait, no_slot }
end

-- settle, correction of the request cost, of the token cost, lease
local function settle()
  redis.call('ZREM', KEYS[3], ARGV[4])
  change(KEYS[1], tonumber(ARGV[2]))
  change(KEYS[2], tonumber(ARGV[3]))
  return {}
end

-- renew, lease duration in ms, lease...
local function renew()
  hold(tonumber(ARGV[2]), 3)
  return {}
end

local actions = { take = take, settle = settle, renew = renew }
return actions[ARGV[1]]()
