# What an administrator is told of: a table or a container that Azure throttles or answers with errors, and a cleaner that fails.

locals {
  alarms = {
    "throttled" = {
      scope     = var.account_id, namespace = "Microsoft.Storage/storageAccounts", metric = "Transactions", aggregation = "Total", threshold = 100
      dimension = "ResponseType", values = ["ServerBusyError", "ClientThrottlingError", "ClientAccountRequestThrottlingError"]
      why       = "Azure throttles the storage account: checkpoints wait and clients' data stay in the edges' journals."
    }
    "failing" = {
      scope     = var.account_id, namespace = "Microsoft.Storage/storageAccounts", metric = "Transactions", aggregation = "Total", threshold = 10
      dimension = "ResponseType", values = ["ServerOtherError", "ServerTimeoutError"]
      why       = "Azure answers with errors of its own: checkpoints wait, nothing is lost. See Azure's health page."
    }
    "refused" = {
      scope     = var.account_id, namespace = "Microsoft.Storage/storageAccounts", metric = "Transactions", aggregation = "Total", threshold = 10
      dimension = "ResponseType", values = ["AuthorizationError", "AuthenticationError"]
      why       = "Somebody asks without the right to: an edge whose role or key was taken away, or a stranger."
    }
  }
}

resource "azurerm_monitor_metric_alert" "this" {
  for_each            = local.alarms
  name                = "${var.name}-${each.key}"
  resource_group_name = var.resource_group
  scopes              = [each.value.scope]
  description         = each.value.why
  frequency           = "PT5M"
  window_size         = "PT15M"
  severity            = 2
  tags                = var.tags

  criteria {
    metric_namespace = each.value.namespace
    metric_name      = each.value.metric
    aggregation      = each.value.aggregation
    operator         = "GreaterThan"
    threshold        = each.value.threshold
    dimension {
      name     = each.value.dimension
      operator = "Include"
      values   = each.value.values
    }
  }

  dynamic "action" {
    for_each = var.action_groups
    content {
      action_group_id = action.value
    }
  }
}

resource "azurerm_monitor_metric_alert" "cleaner" {
  name                = "${var.name}-cleaner-failing"
  resource_group_name = var.resource_group
  scopes              = [var.cleaner_id]
  description         = "The cleaner's calls fail: garbage stays and is paid for, no data is in danger. Its log says why."
  frequency           = "PT15M"
  window_size         = "PT1H"
  severity            = 3
  tags                = var.tags

  criteria {
    metric_namespace = "Microsoft.Web/sites"
    metric_name      = "Http5xx"
    aggregation      = "Total"
    operator         = "GreaterThan"
    threshold        = 3
  }

  dynamic "action" {
    for_each = var.action_groups
    content {
      action_group_id = action.value
    }
  }
}
