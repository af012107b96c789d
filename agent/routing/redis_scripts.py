"""Lua scripts of the router state in Redis: one admits a request, the other settles batches."""

# Keys of one router have one hash tag, so that they are on one node of a cluster. All keys expire.
#   s:<account>  hash: spent, held, since            l  sorted set: lease -> end
#   w:<target>   hash: totals r, t and buckets,       g  hash: lease -> what it holds
#                c requests in flight                p:<target>  lease of the half-open probe
#   q:<process>  number of its latest exchange        h  hash: health, with version v
#   x:<lease>    amount charged for a lost lease      e  epoch             o  stream of outcomes
# Rate windows are 240 buckets of 250 ms, and the current one.
# Documents are arrays, which are encoded fast. The settings of the store come first.
_COMMON = """
local prefix = string.sub(KEYS[1], 1, -2)
local input = cjson.decode(ARGV[1])
local seconds, retention, charges, now = unpack(input)
local time = redis.call('TIME')
if now < 0 then now = time[1] * 1000 + math.floor(time[2] / 1000) end
local HOUR, SIZE, COUNT = 3600000, 250, 240
local bucket = math.floor(now / SIZE)

local function whole(number) return string.format('%.0f', number) end

local function expire_account(account)
  local key, _, window = unpack(account)
  redis.call('PEXPIRE', prefix .. 's:' .. key, whole(window > 0 and window + HOUR or retention))
end

local function read_account(account)
  local name, _, window = unpack(account)
  local key = prefix .. 's:' .. name
  local values = redis.call('HMGET', key, 'spent', 'held', 'since')
  local spent, held, since = tonumber(values[1]) or 0, tonumber(values[2]) or 0, tonumber(values[3])
  if not since or (window > 0 and now >= since + window) then
    spent, since = 0, now
    redis.call('HSET', key, 'spent', 0, 'since', whole(now))
    expire_account(account)
  end
  return spent, held, since
end

local function release(lease)
  local packed = redis.call('HGET', prefix .. 'g', lease)
  if not packed then return nil end
  redis.call('HDEL', prefix .. 'g', lease)
  redis.call('ZREM', prefix .. 'l', lease)
  local holding = cjson.decode(packed)
  if holding.c and redis.call('HINCRBY', prefix .. 'w:' .. holding.t, 'c', -1) < 0 then
    redis.call('HSET', prefix .. 'w:' .. holding.t, 'c', 0)
  end
  for _, account in ipairs(holding.a) do
    if holding.m ~= '0' and redis.call('HINCRBY', prefix .. 's:' .. account, 'held', '-' .. holding.m) < 0 then
      redis.call('HSET', prefix .. 's:' .. account, 'held', 0)
    end
  end
  if holding.p and redis.call('GET', prefix .. 'p:' .. holding.t) == lease then
    redis.call('DEL', prefix .. 'p:' .. holding.t)
  end
  return holding
end

for _, lease in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'l', '-inf', whole(now), 'LIMIT', 0, 50)) do
  local holding = release(lease)
  if holding and charges and holding.m ~= '0' then
    for _, account in ipairs(holding.a) do
      redis.call('HINCRBY', prefix .. 's:' .. account, 'spent', holding.m)
    end
    redis.call('SET', prefix .. 'x:' .. lease, holding.m, 'PX', HOUR)
  end
end

local new_epoch = time[1] .. '.' .. time[2]
local known_epoch, known_version = input[5], input[6]
local epoch = redis.call('GET', prefix .. 'e')
if not epoch then
  epoch = ''
  if known_epoch == '' then
    epoch = new_epoch
    redis.call('SET', prefix .. 'e', epoch, 'PX', whole(retention))
  end
end

local version = tonumber(redis.call('HGET', prefix .. 'h', 'v')) or 0
local function list_health()
  if version == known_version then return {} end
  return redis.call('HGETALL', prefix .. 'h')
end
"""

ADMIT = (
    _COMMON
    + """
local id, claims, accounts = unpack(input, 7)
local is_lost = known_epoch ~= '' and epoch ~= known_epoch and string.sub(epoch, 1, 8) ~= 'restored'

local function read_window(key)
  local head = redis.call('HMGET', key, 'o', 'n', 'r', 't', 'c')
  local oldest, newest = tonumber(head[1]) or bucket, tonumber(head[2]) or bucket
  local requests, tokens, flying = tonumber(head[3]) or 0, tonumber(head[4]) or 0, tonumber(head[5]) or 0
  local first = bucket - COUNT
  if oldest < first then
    local names = {}
    for number = oldest, math.min(newest, first - 1) do
      names[#names + 1] = 'r' .. whole(number)
      names[#names + 1] = 't' .. whole(number)
    end
    local values = redis.call('HMGET', key, unpack(names))
    for i = 1, #values, 2 do
      requests = requests - (tonumber(values[i]) or 0)
      tokens = tokens - (tonumber(values[i + 1]) or 0)
    end
    redis.call('HDEL', key, unpack(names))
    oldest = newest < first and bucket or first
    newest = math.max(newest, oldest)
    redis.call('HSET', key, 'o', whole(oldest), 'n', whole(newest), 'r', whole(requests), 't', whole(tokens))
  end
  return oldest, newest, requests, tokens, flying
end

local function find_wait(key, oldest, newest, field, excess)
  local names = {}
  for number = oldest, newest do names[#names + 1] = field .. whole(number) end
  local values = redis.call('HMGET', key, unpack(names))
  for i = 1, #values do
    excess = excess - (tonumber(values[i]) or 0)
    if excess <= 0 then return (oldest + i + COUNT) * SIZE - now end
  end
  return COUNT * SIZE
end

local function refuse(claim)
  local target, claimed_tokens, cost, rpm, tpm, concurrency, expected_generation = unpack(claim)
  if version ~= known_version or expected_generation >= 0 then
    local health = redis.call('HMGET', prefix .. 'h', 'c:' .. target, 'b:' .. target)
    local generation, opened = string.match(health[2] or '', '^(%d+):(%d*)$')
    local cooling = tonumber(string.match(health[1] or '', '^(%d+):')) or 0
    if version ~= known_version and (cooling > now or ((opened or '') ~= '' and expected_generation < 0)) then
      return {'health', 0, -1, '0', '0'}
    end
    if expected_generation >= 0 then
      if (tonumber(generation) or 0) > expected_generation then return {'health', 0, -1, '0', '0'} end
      local left = redis.call('PTTL', prefix .. 'p:' .. target)
      if left >= 0 then return {'probe', left, -1, '0', '0'} end
    end
  end
  if rpm > 0 or tpm > 0 or concurrency > 0 then
    local key = prefix .. 'w:' .. target
    local oldest, newest, requests, tokens, flying = read_window(key)
    if concurrency > 0 and flying >= concurrency then return {'concurrency', -2, -1, '0', '0'} end
    local wait, reason = 0, nil
    if rpm > 0 and requests >= rpm then
      wait, reason = find_wait(key, oldest, newest, 'r', requests + 1 - rpm), 'rpm'
    end
    if tpm > 0 then
      local excess = tokens + math.min(claimed_tokens, tpm) - tpm
      if excess > 0 then
        wait, reason = math.max(wait, find_wait(key, oldest, newest, 't', excess)), reason or 'tpm'
      end
    end
    if reason then return {reason, wait, -1, '0', '0'} end
  end
  for index, account in ipairs(accounts) do
    if is_lost then return {'lost', -1, index - 1, '0', '0'} end
    local spent, held, since = read_account(account)
    local _, limit, window = unpack(account)
    local left = limit - spent - held
    if cost > left then
      if spent + cost <= limit then return {'held', -2, index - 1, whole(left), whole(held)} end
      local wait = window > 0 and since + window - now or -1
      return {'spent', wait, index - 1, whole(left), whole(held)}
    end
  end
  return nil
end

local function hold(claim)
  local target, tokens, cost, rpm, tpm, concurrency, expected_generation = unpack(claim)
  if rpm > 0 or tpm > 0 or concurrency > 0 then
    local key = prefix .. 'w:' .. target
    if rpm > 0 or tpm > 0 then
      if not redis.call('HGET', key, 'o') then redis.call('HSET', key, 'o', whole(bucket)) end
      redis.call('HINCRBY', key, 'r', 1)
      redis.call('HINCRBY', key, 'r' .. whole(bucket), 1)
      if tokens > 0 then
        redis.call('HINCRBY', key, 't', tokens)
        redis.call('HINCRBY', key, 't' .. whole(bucket), tokens)
      end
      redis.call('HSET', key, 'n', whole(bucket))
    end
    if concurrency > 0 then redis.call('HINCRBY', key, 'c', 1) end
    redis.call('PEXPIRE', key, HOUR)
  end
  local names = {}
  for index, account in ipairs(accounts) do
    redis.call('HINCRBY', prefix .. 's:' .. account[1], 'held', whole(cost))
    expire_account(account)
    names[index] = account[1]
  end
  local probes = expected_generation >= 0
  if probes then redis.call('SET', prefix .. 'p:' .. target, id, 'PX', seconds) end
  if #names > 0 or concurrency > 0 or probes then
    local holding = {t = target, a = names, m = whole(cost), c = concurrency > 0, p = probes}
    redis.call('HSET', prefix .. 'g', id, cjson.encode(holding))
    redis.call('ZADD', prefix .. 'l', whole(now + seconds), id)
    redis.call('PEXPIRE', prefix .. 'g', HOUR)
    redis.call('PEXPIRE', prefix .. 'l', HOUR)
  end
end

local admitted, refusals = -1, {}
for index, claim in ipairs(claims) do
  local refusal = refuse(claim)
  if not refusal then
    hold(claim)
    admitted = index - 1
    break
  end
  refusals[index] = refusal
end
local balances = {}
for index, account in ipairs(accounts) do
  local spent, held, since = read_account(account)
  balances[index] = {whole(spent), whole(held), now - since}
end
return cjson.encode({admitted, bucket, whole(now), refusals, balances, version, list_health(), epoch})
"""
)

EXCHANGE = (
    _COMMON
    + """
local sender, number, settlements, renewals, changes, new_events, last, restored = unpack(input, 7)

local function set_health(field, value)
  redis.call('HSET', prefix .. 'h', field, value)
end

local function change_health(change)
  local kind, target, milliseconds, reason = unpack(change)
  if kind == 'open' or kind == 'close' or kind == 'reset' then
    local current = redis.call('HGET', prefix .. 'h', 'b:' .. target) or '0:'
    local generation = tonumber(string.match(current, '^(%d+):')) + 1
    local opened = kind == 'open' and whole(now - milliseconds) or ''
    set_health('b:' .. target, whole(generation) .. ':' .. opened)
  end
  if kind == 'reset' then
    set_health('x:' .. target, whole((tonumber(redis.call('HGET', prefix .. 'h', 'x:' .. target)) or 0) + 1))
    redis.call('HDEL', prefix .. 'h', 'c:' .. target)
    for _, field in ipairs(redis.call('HKEYS', prefix .. 'h')) do
      if string.sub(field, 1, #target + 3) == 'k:' .. target .. '#' then redis.call('HDEL', prefix .. 'h', field) end
    end
  end
  if kind == 'cool' or kind == 'key' then
    local field = string.sub(kind, 1, 1) .. ':' .. target
    local current = redis.call('HGET', prefix .. 'h', field) or ''
    local ending = milliseconds < 0 and 9e15 or now + milliseconds
    if ending > (tonumber(string.match(current, '^(%d+):')) or 0) then
      set_health(field, whole(ending) .. ':' .. reason)
    end
  end
end

local function settle(settlement)
  local lease, target, used_bucket, tokens, cost, accounts = unpack(settlement)
  release(lease)
  if #accounts > 0 then
    local charged = redis.call('GET', prefix .. 'x:' .. lease)
    if charged then
      cost = cost - tonumber(charged)
      redis.call('DEL', prefix .. 'x:' .. lease)
    end
  end
  for _, account in ipairs(accounts) do
    read_account(account)
    if cost ~= 0 then redis.call('HINCRBY', prefix .. 's:' .. account[1], 'spent', whole(cost)) end
    expire_account(account)
  end
  if tokens ~= 0 and used_bucket >= 0 then
    local key, field = prefix .. 'w:' .. target, 't' .. whole(used_bucket)
    local oldest = tonumber(redis.call('HGET', key, 'o'))
    if oldest and used_bucket >= oldest then
      redis.call('HINCRBY', key, field, tokens)
      redis.call('HINCRBY', key, 't', tokens)
    end
  end
end

local process = prefix .. 'q:' .. sender
if number > (tonumber(redis.call('GET', process)) or 0) then
  redis.call('SET', process, number, 'PX', HOUR)
  for _, change in ipairs(changes) do
    change_health(change)
    version = redis.call('HINCRBY', prefix .. 'h', 'v', 1)
    redis.call('PEXPIRE', prefix .. 'h', 24 * HOUR)
  end
  for _, settlement in ipairs(settlements) do settle(settlement) end
  if new_events ~= '' then
    redis.call('XADD', prefix .. 'o', 'MAXLEN', '~', 1000, '*', 'p', sender, 'e', new_events)
    redis.call('PEXPIRE', prefix .. 'o', HOUR)
  end
  if #restored > 0 then
    local account, amount = unpack(restored)
    local spent = read_account(account)
    redis.call('HSET', prefix .. 's:' .. account[1], 'spent', whole(math.max(spent, amount)))
    expire_account(account)
    epoch = 'restored' .. new_epoch
    redis.call('SET', prefix .. 'e', epoch)
  end
end
for _, lease in ipairs(renewals) do
  if redis.call('ZADD', prefix .. 'l', 'XX', 'CH', whole(now + seconds), lease) == 1 then
    local holding = cjson.decode(redis.call('HGET', prefix .. 'g', lease))
    redis.call('PEXPIRE', prefix .. 'w:' .. holding.t, HOUR)
    if holding.p then redis.call('PEXPIRE', prefix .. 'p:' .. holding.t, seconds) end
    for _, key in ipairs({'g', 'l'}) do redis.call('PEXPIRE', prefix .. key, HOUR) end
  end
end
if epoch ~= '' then redis.call('PEXPIRE', prefix .. 'e', whole(retention)) end
local events = {}
if last == '' then
  local newest = redis.call('XREVRANGE', prefix .. 'o', '+', '-', 'COUNT', 1)[1]
  last = newest and newest[1] or '0-0'
else
  for _, entry in ipairs(redis.call('XRANGE', prefix .. 'o', '(' .. last, '+', 'COUNT', 200)) do
    last = entry[1]
    if entry[2][2] ~= sender then events[#events + 1] = entry[2][4] end
  end
end
return cjson.encode({whole(now), version, list_health(), events, last, epoch})
"""
)
