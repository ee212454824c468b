-- Health of a KafkaCluster, KafkaTopic or Reassignment for Argo CD: the same for all three.
local health = {status = "Progressing", message = "Waiting for the operator"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end
local ready, stalled = nil, nil
for _, condition in ipairs(obj.status.conditions) do
  if condition.type == "Ready" then ready = condition end
  if condition.type == "Stalled" and condition.status == "True" then stalled = condition end
end
if obj.status.observedGeneration ~= nil and obj.status.observedGeneration < obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not seen the present spec yet"}
end
if stalled ~= nil then
  return {status = "Degraded", message = stalled.message}
end
if ready == nil then
  return health
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
if ready.reason == "Paused" or ready.reason == "AwaitingApproval" then
  return {status = "Suspended", message = ready.message}
end
if ready.status == "Unknown" then
  return {status = "Unknown", message = ready.message}
end
-- It may pass by itself, or wait for a person for ever.
local trouble = {
  BrokersOffline = true, DirectoryFailed = true, KubernetesRefused = true, NodeLost = true, PartitionsOffline = true,
  PodHeld = true, PodsMissing = true, PodsNotStarting = true, RackUnknown = true,
}
if trouble[ready.reason] then
  return {status = "Degraded", message = ready.message}
end
return {status = "Progressing", message = ready.message}
