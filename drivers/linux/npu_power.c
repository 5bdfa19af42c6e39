// SPDX-License-Identifier: GPL-2.0
/* How a device sleeps, wakes, and is reset by others. */
#include <linux/delay.h>
#include <linux/pm_runtime.h>

#include "npu.h"

/*
 * Registers are lost in sleep, memory is not. Jobs keep the device awake, so it
 * contains none. System sleep may remove power and lose the memory: then it
 * counts as another device.
 */
static int npu_runtime_suspend(struct device *dev)
{
	struct npu *npu = dev_get_drvdata(dev);

	mutex_lock(&npu->lock);
	npu->counters.suspends++;
	npu_mappings_zap(npu);
	if (npu->state == NPU_UP) {
		npu_mark(npu);
		npu_quiet(npu);
	}
	mutex_unlock(&npu->lock);
	return 0;
}

static void npu_wake(struct npu *npu)
{
	int err;

	mutex_lock(&npu->lock);
	if (npu->state == NPU_UP) {
		err = npu_has_mark(npu) ? npu_start(npu) : -ENODEV;
		if (err == -ENODEV)
			npu_gone(npu);
		else if (err)
			npu->state = NPU_STUCK;
	}
	mutex_unlock(&npu->lock);
}

static int npu_runtime_resume(struct device *dev)
{
	npu_wake(dev_get_drvdata(dev));
	return 0;	/* errors are reported to the users of the device */
}

/* The system suspends: jobs get their usual time limit. */
static int npu_suspend(struct device *dev)
{
	struct npu *npu = dev_get_drvdata(dev);
	unsigned long end = jiffies + msecs_to_jiffies(npu_timeout_ms);

	mutex_lock(&npu->lock);
	while (npu->state == NPU_UP && npu->inside && time_before(jiffies, end)) {
		mutex_unlock(&npu->lock);
		msleep(20);
		mutex_lock(&npu->lock);
		if (npu->state == NPU_UP)
			npu_look(npu);
	}
	if (npu->inside) {
		npu_collect(npu);
		npu_quiet(npu);	/* before their memory is given to another client */
		npu_jobs_lose(npu, NPU_ENDED_RESET, "the system went to sleep");
	}
	mutex_unlock(&npu->lock);
	cancel_delayed_work_sync(&npu->watchdog);
	return pm_runtime_force_suspend(dev);
}

static int npu_resume(struct device *dev)
{
	return pm_runtime_force_resume(dev);
}

const struct dev_pm_ops npu_pm_ops = {
	SYSTEM_SLEEP_PM_OPS(npu_suspend, npu_resume)
	RUNTIME_PM_OPS(npu_runtime_suspend, npu_runtime_resume, NULL)
};

/* Somebody resets the function, through sysfs for one. */
static void npu_reset_prepare(struct pci_dev *pdev)
{
	struct npu *npu = pci_get_drvdata(pdev);

	mutex_lock(&npu->lock);
	npu_collect(npu);
	if (npu->state == NPU_UP) {
		npu_mark(npu);
		npu_quiet(npu);
	}
	npu_jobs_lose(npu, NPU_ENDED_RESET, "the PCI function was reset");
	mutex_unlock(&npu->lock);
}

static void npu_reset_done(struct pci_dev *pdev)
{
	npu_wake(pci_get_drvdata(pdev));
}

const struct pci_error_handlers npu_error_handlers = {
	.reset_prepare = npu_reset_prepare,
	.reset_done = npu_reset_done,
};
