// SPDX-License-Identifier: GPL-2.0
/* The PCI driver: probe and removal of a device. */
#include <linux/debugfs.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pm_runtime.h>
#include <linux/slab.h>

#include "npu.h"

#define NPU_VENDOR 0x1e4e
#define NPU_DEVICE 0x0042
#define MOST_VECTORS 4	/* of the three rings, and of faults */
#define MOST_ENTRIES 65536
#define AUTOSUSPEND_MS 50

unsigned int npu_timeout_ms = 3000;
module_param_named(timeout_ms, npu_timeout_ms, uint, 0644);
MODULE_PARM_DESC(timeout_ms, "milliseconds without the end of any job after which jobs are aborted");

static unsigned int ring_entries = 64;
module_param(ring_entries, uint, 0444);
MODULE_PARM_DESC(ring_entries, "jobs of one priority in the device, a power of two from 1 to 65536");

static bool preempt = true;
module_param(preempt, bool, 0444);
MODULE_PARM_DESC(preempt, "whether a job of a higher priority parks one of a lower");

static DEFINE_IDA(numbers);

static void free_npu(struct kref *ref)
{
	struct npu *npu = container_of(ref, struct npu, ref);

	ida_free(&numbers, npu->number);
	kfree(npu->saved);
	pci_dev_put(npu->pdev);
	mutex_destroy(&npu->lock);
	kfree(npu);
}

void npu_get(struct npu *npu)
{
	kref_get(&npu->ref);
}

void npu_put(struct npu *npu)
{
	kref_put(&npu->ref, free_npu);
}

/* From here to npu_exit() the device is there and awake; -ENODEV if it is not any more. */
int npu_enter(struct npu *npu)
{
	down_read(&npu->gate);
	if (npu->removed || pm_runtime_resume_and_get(&npu->pdev->dev) < 0) {
		up_read(&npu->gate);
		return -ENODEV;
	}
	return 0;
}

void npu_exit(struct npu *npu)
{
	pm_runtime_mark_last_busy(&npu->pdev->dev);
	pm_runtime_put_autosuspend(&npu->pdev->dev);
	up_read(&npu->gate);
}

static struct npu *npu_new(struct pci_dev *pdev)
{
	struct npu *npu = kzalloc(sizeof(*npu), GFP_KERNEL);
	int i;

	if (!npu)
		return NULL;
	npu->number = ida_alloc(&numbers, GFP_KERNEL);
	if (npu->number < 0) {
		kfree(npu);
		return NULL;
	}
	snprintf(npu->name, sizeof(npu->name), "npu%d", npu->number);
	kref_init(&npu->ref);
	npu->pdev = pci_dev_get(pdev);
	init_rwsem(&npu->gate);
	mutex_init(&npu->lock);
	npu->blocks = RB_ROOT;
	npu->ring_entries = ring_entries;
	INIT_LIST_HEAD(&npu->clients);
	INIT_DELAYED_WORK(&npu->watchdog, npu_watchdog);
	for (i = 0; i < NPU_PRIORITIES; i++)
		INIT_LIST_HEAD(&npu->rings[i].jobs);
	return npu;
}

/* Whether it is a device that this driver was written for. */
static int identify(struct npu *npu)
{
	struct device *dev = &npu->pdev->dev;
	u32 id = npu_read(npu, NPU_ID), version = npu_read(npu, NPU_VERSION);

	if (id != NPU_ID_MAGIC)
		return dev_err_probe(dev, -ENODEV, "register ID must be %#x, is %#x\n", NPU_ID_MAGIC, id);
	if (version >> NPU_VERSION_INTERFACE_SHIFT != NPU_INTERFACE)
		return dev_err_probe(dev, -ENODEV, "interface %u is needed, the device has %u\n", NPU_INTERFACE,
				     version >> NPU_VERSION_INTERFACE_SHIFT);
	npu->mem_bytes = min_t(u64, npu_read_pair(npu, NPU_CAP_DRAM_LO), pci_resource_len(npu->pdev, NPU_BAR_MEMORY));
	if (IS_ENABLED(CONFIG_INDIRECT_IOMEM))
		npu->mem_bytes = min_t(u64, npu->mem_bytes, NPU_UML_BYTES);
	npu->mem_bytes &= PAGE_MASK;
	npu->context_bytes = npu_read_pair(npu, NPU_CAP_CONTEXT_LO);
	if (npu->mem_bytes <= PAGE_SIZE)
		return dev_err_probe(dev, -ENODEV, "%llu bytes of memory are too few\n", npu->mem_bytes);
	npu->free_bytes = npu->mem_bytes - PAGE_SIZE;
	return 0;
}

/* Memory for the rings and for preempted jobs. Without the latter, jobs are not preempted. */
static int take_memory(struct npu *npu)
{
	u64 bytes = (u64)npu->ring_entries * sizeof(struct npu_ring_entry);
	struct npu_block *block = npu_block_new(npu, NULL, NPU_PRIORITIES * bytes + sizeof(u64));
	int i;

	if (IS_ERR(block))
		return PTR_ERR(block);
	npu->ring_block = block;
	for (i = 0; i < NPU_PRIORITIES; i++)
		npu->rings[i].base = block->address + i * bytes;
	npu->mark = block->address + NPU_PRIORITIES * bytes;
	if (!preempt || !npu->context_bytes)
		return 0;
	/* The device writes there before it reads, so zeroing this large area is unnecessary. */
	block = npu_block_reserve(npu, npu->context_bytes);
	if (IS_ERR(block))
		dev_warn(&npu->pdev->dev, "no room for parked jobs: none is parked\n");
	else
		npu->context = block;
	return 0;
}

static void give_back_memory(struct npu *npu)
{
	if (npu->context)
		npu_block_put(npu->context);
	if (npu->ring_block)
		npu_block_put(npu->ring_block);
	npu->context = NULL;
	npu->ring_block = NULL;
}

static void free_irqs(struct npu *npu)
{
	while (npu->vectors)
		free_irq(pci_irq_vector(npu->pdev, --npu->vectors), npu);
	pci_free_irq_vectors(npu->pdev);
}

/*
 * As many vectors as are distinguished: the device only sends those that
 * route_interrupts() assigns.
 */
static int take_irqs(struct npu *npu)
{
	int count = pci_alloc_irq_vectors(npu->pdev, 1, MOST_VECTORS, PCI_IRQ_ALL_TYPES), err;
	bool messages = npu->pdev->msi_enabled || npu->pdev->msix_enabled;

	if (count < 0)
		return count;
	while (npu->vectors < count) {
		int irq = pci_irq_vector(npu->pdev, npu->vectors);

		if (messages)
			err = request_threaded_irq(irq, NULL, npu_message_thread, IRQF_ONESHOT, npu->name, npu);
		else
			err = request_threaded_irq(irq, npu_irq, npu_irq_thread, IRQF_SHARED, npu->name, npu);
		if (err) {
			free_irqs(npu);
			return err;
		}
		npu->vectors++;
	}
	return 0;
}

static int map(struct npu *npu)
{
	struct pci_dev *pdev = npu->pdev;
	int err = pci_request_regions(pdev, "npu");

	if (err)
		return err;
	npu->regs = pci_iomap(pdev, NPU_BAR_REGISTERS, 0);
	npu->mem = pci_iomap_wc(pdev, NPU_BAR_MEMORY, 0);
	return npu->regs && npu->mem ? 0 : -ENOMEM;
}

static void unmap(struct npu *npu)
{
	if (npu->mem)
		pci_iounmap(npu->pdev, npu->mem);
	if (npu->regs)
		pci_iounmap(npu->pdev, npu->regs);
	pci_release_regions(npu->pdev);
}

static int add_file(struct npu *npu)
{
	npu->misc.minor = MISC_DYNAMIC_MINOR;
	npu->misc.name = npu->name;
	npu->misc.fops = &npu_fops;
	npu->misc.parent = &npu->pdev->dev;
	return misc_register(&npu->misc);
}

static int npu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct npu *npu = npu_new(pdev);
	int err;

	if (!npu)
		return -ENOMEM;
	pci_set_drvdata(pdev, npu);
	err = pci_enable_device(pdev);
	if (err)
		goto put;
	pci_set_master(pdev);
	err = map(npu);
	if (!err)
		err = identify(npu);
	if (!err)
		err = take_memory(npu);
	if (!err)
		err = take_irqs(npu);
	if (err)
		goto unmap;
	pci_save_state(pdev);
	npu->saved = pci_store_saved_state(pdev);
	err = npu_start(npu);
	if (err == -EIO)
		err = npu_restart_function(npu);
	if (err) {
		dev_err(&pdev->dev, "does not come back from a reset: STATUS %#x\n", npu_read(npu, NPU_STATUS));
		goto irqs;
	}
	pm_runtime_set_autosuspend_delay(&pdev->dev, AUTOSUSPEND_MS);
	pm_runtime_use_autosuspend(&pdev->dev);
	err = add_file(npu);
	if (err)
		goto quiet;
	npu_debugfs_add(npu);
	pm_runtime_put_noidle(&pdev->dev);	/* users wake it; whether it sleeps is power/control's in sysfs */
	dev_info(&pdev->dev, "%s: interface %u, %llu MiB, %d vectors, preemption %s\n", npu->name, NPU_INTERFACE,
		 npu->mem_bytes >> 20, npu->vectors, npu->preempts ? "on" : "off");
	return 0;

quiet:
	npu_quiet(npu);
irqs:
	free_irqs(npu);
unmap:
	give_back_memory(npu);
	unmap(npu);
	pci_disable_device(pdev);
put:
	npu_put(npu);
	return err;
}

static void npu_remove(struct pci_dev *pdev)
{
	struct npu *npu = pci_get_drvdata(pdev);
	struct npu_client *client;

	pm_runtime_get_noresume(&pdev->dev);
	misc_deregister(&npu->misc);
	debugfs_remove_recursive(npu->debugfs);
	down_write(&npu->gate);
	npu->removed = true;
	mutex_lock(&npu->lock);
	npu_collect(npu);
	npu_quiet(npu);
	npu_jobs_lose(npu, NPU_ENDED_GONE, "the driver was removed");
	list_for_each_entry(client, &npu->clients, link) {
		client->dead = true;
		wake_up_all(&client->wait);
	}
	npu_mappings_zap(npu);
	mutex_unlock(&npu->lock);
	up_write(&npu->gate);
	cancel_delayed_work_sync(&npu->watchdog);
	free_irqs(npu);
	give_back_memory(npu);
	unmap(npu);
	pci_clear_master(pdev);
	pci_disable_device(pdev);
	npu_put(npu);	/* clients that are still open also hold it */
}

static const struct pci_device_id npu_ids[] = {
	{ PCI_DEVICE(NPU_VENDOR, NPU_DEVICE) },
	{}
};
MODULE_DEVICE_TABLE(pci, npu_ids);

static struct pci_driver npu_driver = {
	.name = "npu",
	.id_table = npu_ids,
	.probe = npu_probe,
	.remove = npu_remove,
	.err_handler = &npu_error_handlers,
	.driver.pm = pm_ptr(&npu_pm_ops),
};

static int __init npu_init(void)
{
	if (!ring_entries || ring_entries > MOST_ENTRIES || ring_entries & (ring_entries - 1)) {
		pr_err("npu: ring_entries must be a power of two from 1 to %u, is %u\n", MOST_ENTRIES, ring_entries);
		return -EINVAL;
	}
	if (!npu_timeout_ms) {
		pr_err("npu: timeout_ms must be more than 0\n");
		return -EINVAL;
	}
	return pci_register_driver(&npu_driver);
}
module_init(npu_init);

static void __exit npu_exit_module(void)
{
	pci_unregister_driver(&npu_driver);
}
module_exit(npu_exit_module);

MODULE_DESCRIPTION("Driver for the NPU that npusim simulates");
MODULE_LICENSE("GPL");
