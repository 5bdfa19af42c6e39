// SPDX-License-Identifier: GPL-2.0
/* Registers, the window onto device memory, reset, interrupts. */
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/iopoll.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "npu.h"

#define RING(ring, register) (NPU_LOW_##register + (ring) * (NPU_MEDIUM_TAIL - NPU_LOW_TAIL))

u32 npu_read(struct npu *npu, u32 offset)
{
	return readl(npu->regs + offset);
}

/* A 64-bit register whose halves do not change on their own. */
u64 npu_read_pair(struct npu *npu, u32 low)
{
	return (u64)npu_read(npu, low + 4) << 32 | npu_read(npu, low);
}

void npu_write(struct npu *npu, u32 offset, u32 value)
{
	writel(value, npu->regs + offset);
}

/* A read is ordered after all posted writes: they have arrived. */
void npu_flush(struct npu *npu)
{
	npu_read(npu, NPU_STATUS);
}

/* Whether there is a device, and it is the one that was set up: without power in between all is lost. */
bool npu_is_there(struct npu *npu)
{
	return npu_read(npu, NPU_LOW_SIZE) == npu->ring_entries;
}

static void npu_write_pair(struct npu *npu, u32 low, u64 value)
{
	npu_write(npu, low, lower_32_bits(value));
	npu_write(npu, low + 4, upper_32_bits(value));
}

/*
 * Copies use chunks of a buffer with physical addresses: under User Mode Linux
 * a copy is a message over a virtual queue, which accepts no other buffers. A
 * read now and then keeps the number of posted messages below the size of that
 * queue; on a real bus it costs next to nothing. If each access is slow, a
 * chunk takes half a second, so yield the processor in between.
 */
int npu_copy_to(struct npu *npu, u64 address, const void *from, u64 bytes)
{
	u32 size = min_t(u64, bytes, NPU_CHUNK), count = 0;
	void *buffer;

	if (!bytes)
		return 0;
	buffer = kmalloc(size, GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	while (bytes) {
		size = min_t(u64, bytes, NPU_CHUNK);
		memcpy(buffer, from, size);
		memcpy_toio(npu->mem + address, buffer, size);
		address += size;
		from += size;
		bytes -= size;
		if (++count % 32 == 0)
			npu_flush(npu);
		cond_resched();
	}
	kfree(buffer);
	return 0;
}

int npu_copy_from(struct npu *npu, void *to, u64 address, u64 bytes)
{
	u32 size = min_t(u64, bytes, NPU_CHUNK);
	void *buffer;

	if (!bytes)
		return 0;
	buffer = kmalloc(size, GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	while (bytes) {
		size = min_t(u64, bytes, NPU_CHUNK);
		memcpy_fromio(buffer, npu->mem + address, size);
		memcpy(to, buffer, size);
		address += size;
		to += size;
		bytes -= size;
		cond_resched();
	}
	kfree(buffer);
	return 0;
}

/*
 * Not memset_io(): under User Mode Linux 6.1 that writes to configuration
 * space. There a copy is one message, and a loop would be one message per
 * access. Elsewhere it is a loop anyway, of 4 bytes on x86; here of 8 bytes,
 * with half as many accesses.
 */
static void zero_chunk(struct npu *npu, u64 address, const void *zeros, u32 size)
{
	if (IS_ENABLED(CONFIG_INDIRECT_IOMEM))
		memcpy_toio(npu->mem + address, zeros, size);
	else
		__iowrite64_copy(npu->mem + address, zeros, size / 8);
}

/* Address and bytes: multiples of 8. */
int npu_zero(struct npu *npu, u64 address, u64 bytes)
{
	u32 count = 0;
	void *zeros = kzalloc(NPU_CHUNK, GFP_KERNEL);

	if (!zeros)
		return -ENOMEM;
	while (bytes) {
		u32 size = min_t(u64, bytes, NPU_CHUNK);

		zero_chunk(npu, address, zeros, size);
		address += size;
		bytes -= size;
		if (++count % 32 == 0)
			npu_flush(npu);
		cond_resched();
	}
	kfree(zeros);
	return 0;
}

/*
 * Each ring and the faults have their own vector, as far as there are enough;
 * the last vector is shared by the rest.
 */
static void route_interrupts(struct npu *npu)
{
	u32 has = (npu_read(npu, NPU_CAP_HOST) & NPU_CAP_HOST_VECTORS) >> NPU_CAP_HOST_VECTORS_SHIFT;
	u32 vectors = min_t(u32, has, npu->vectors);

	if (vectors > 1)
		npu_write(npu, NPU_INT_ROUTE, min(1u, vectors - 1) << NPU_INT_ROUTE_MEDIUM_SHIFT |
			  min(2u, vectors - 1) << NPU_INT_ROUTE_HIGH_SHIFT |
			  min(3u, vectors - 1) << NPU_INT_ROUTE_FAULT_SHIFT);
}

/*
 * Reset the device and make it accept jobs. Memory keeps its contents, jobs do
 * not survive. -ENODEV: the device is gone; -EIO: it does not come back.
 */
int npu_start(struct npu *npu)
{
	u32 status;
	int i;

	npu->counters.resets++;
	npu_write(npu, NPU_CONTROL, NPU_CONTROL_RESET);
	/* With sleeps: on a virtual clock no time passes in a loop that does not. */
	if (read_poll_timeout(npu_read, status, status & NPU_STATUS_READY, 100, NPU_RESET_US, false,
			      npu, NPU_STATUS))
		return -EIO;
	if (status == NPU_ALL_ONES)
		return -ENODEV;
	if (status != NPU_STATUS_READY)
		return -EIO;

	for (i = 0; i < NPU_PRIORITIES; i++) {
		npu->rings[i].tail = 0;
		npu_write_pair(npu, RING(i, BASE_LO), npu->rings[i].base);
		npu_write(npu, RING(i, SIZE), npu->ring_entries);
	}
	if (npu->context) {
		npu_write_pair(npu, NPU_CONTEXT_BASE_LO, npu->context->address);
		npu_write(npu, NPU_PREEMPT, NPU_PREEMPT_ENABLE);
		npu->preempts = npu_read(npu, NPU_PREEMPT) == NPU_PREEMPT_ENABLE;
	}
	route_interrupts(npu);
	npu_write(npu, NPU_INT_MASK, NPU_INT_MASK_DONE | NPU_INT_MASK_FAULT);
	return 0;
}

/*
 * The last resort: reset the PCI function, which also resets configuration
 * space, and start again. Returns as npu_start() does.
 */
int npu_restart_function(struct npu *npu)
{
	if (npu_read(npu, NPU_ID) == NPU_ID_MAGIC)
		pcie_reset_flr(npu->pdev, PCI_RESET_DO_RESET);
	if (pci_load_saved_state(npu->pdev, npu->saved))
		return -EIO;
	pci_restore_state(npu->pdev);
	if (npu_read(npu, NPU_ID) != NPU_ID_MAGIC)
		return -ENODEV;
	return npu_start(npu);
}

/* The device does nothing any more and sends no interrupt. */
void npu_quiet(struct npu *npu)
{
	npu_write(npu, NPU_INT_MASK, 0);
	npu_write(npu, NPU_CONTROL, NPU_CONTROL_RESET);
	npu_flush(npu);
}

/* Before sleep. */
void npu_mark(struct npu *npu)
{
	u64 mark = NPU_MARK;

	npu_copy_to(npu, npu->mark, &mark, sizeof(mark));
}

/* After it: whether memory has kept its bytes. Registers do not tell, they are as after power-on anyway. */
bool npu_has_mark(struct npu *npu)
{
	u64 mark = 0;

	npu_copy_from(npu, &mark, npu->mark, sizeof(mark));
	return mark == NPU_MARK;
}

/*
 * Clear first, look at the records then, in the thread: a job that ends in
 * between sends again. Nothing to clear is legal, for a message cannot be taken
 * back; if it is all that comes, the kernel's own detection of storms must see it.
 */
irqreturn_t npu_irq(int irq, void *data)
{
	struct npu *npu = data;
	u32 status = npu_read(npu, NPU_INT_STATUS);

	atomic64_inc(&npu->irqs);
	if (status == NPU_ALL_ONES)	/* the device is gone; the watchdog will notice */
		return IRQ_NONE;
	if (!status) {
		atomic64_inc(&npu->irqs_for_nothing);
		return IRQ_NONE;
	}
	npu_write(npu, NPU_INT_STATUS, status);
	return IRQ_WAKE_THREAD;
}

irqreturn_t npu_irq_thread(int irq, void *data)
{
	struct npu *npu = data;

	down_read(&npu->gate);
	mutex_lock(&npu->lock);
	if (!npu->removed && npu->state == NPU_UP)
		npu_look(npu);
	mutex_unlock(&npu->lock);
	up_read(&npu->gate);
	return IRQ_HANDLED;
}

/*
 * An interrupt, handled completely in the thread. A handler that reads
 * registers concurrently with another reader would corrupt the other's result
 * under User Mode Linux 6.1, which has one buffer for both.
 */
irqreturn_t npu_message_thread(int irq, void *data)
{
	irqreturn_t result = npu_irq(irq, data);

	return result == IRQ_WAKE_THREAD ? npu_irq_thread(irq, data) : result;
}
