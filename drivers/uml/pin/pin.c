// SPDX-License-Identifier: GPL-2.0
/*
 * An interrupt controller for the pins of PCI functions under User Mode Linux.
 *
 * virt-pci of Linux 6.1 gives the pin the number of an interrupt without a controller: request_irq() fails with ENOSYS.
 * Load this module before the driver. The pin is level-triggered: while it is asserted, the simulator interrupts
 * repeatedly.
 */
#include <linux/irq.h>
#include <linux/module.h>
#include <linux/pci.h>

static int __init pin_init(void)
{
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev) {
		struct pci_host_bridge *bridge = pci_find_host_bridge(pdev->bus);
		int irq = pdev->pin && bridge->map_irq ? bridge->map_irq(pdev, PCI_SLOT(pdev->devfn), pdev->pin) : 0;

		if (irq <= 0)
			continue;
		irq_set_chip_and_handler(irq, &dummy_irq_chip, handle_level_irq);
		pci_info(pdev, "the pin is interrupt %d\n", irq);
	}
	return 0;
}
module_init(pin_init);

/* A requested interrupt keeps its controller. */
static void __exit pin_exit(void)
{
}
module_exit(pin_exit);

MODULE_DESCRIPTION("Interrupt controller for PCI pins under User Mode Linux");
MODULE_LICENSE("GPL");
