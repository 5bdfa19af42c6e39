// SPDX-License-Identifier: GPL-2.0
/*
 * Device memory: allocation, and mappings into programs.
 *
 * Blocks consist of whole pages, so that no page is mapped by two clients. They
 * are in a tree sorted by address, and a new block takes the first gap that is
 * large enough. A block is freed when its owner, its jobs and its mappings have
 * all released it.
 *
 * A mapping maps the memory window itself. If ioremap() has no physical
 * addresses behind it, as under User Mode Linux, pages of the host replace it,
 * and NPU_IOC_SYNC copies between them and the device.
 */
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "npu.h"

#define NO_WINDOW IS_ENABLED(CONFIG_INDIRECT_IOMEM)

static struct npu_block *block_of(struct rb_node *node)
{
	return rb_entry(node, struct npu_block, node);
}

/*
 * Put a block into the first gap; false if there is none. Page 0 stays free,
 * because 0 means no address.
 */
static bool insert(struct npu *npu, struct npu_block *block)
{
	struct rb_node **link = &npu->blocks.rb_node, *parent = NULL, *node;
	u64 end = PAGE_SIZE;

	for (node = rb_first(&npu->blocks); node; node = rb_next(node)) {
		if (block_of(node)->address - end >= block->bytes)
			break;
		end = block_of(node)->address + block_of(node)->bytes;
	}
	if (end > npu->mem_bytes || npu->mem_bytes - end < block->bytes)
		return false;
	block->address = end;
	while (*link) {
		parent = *link;
		link = block_of(parent)->address > end ? &parent->rb_left : &parent->rb_right;
	}
	rb_link_node(&block->node, parent, link);
	rb_insert_color(&block->node, &npu->blocks);
	npu->free_bytes -= block->bytes;
	return true;
}

/* Allocate memory for the driver itself, uninitialised. ERR_PTR: ENOMEM. */
struct npu_block *npu_block_reserve(struct npu *npu, u64 bytes)
{
	struct npu_block *block;
	bool fits;

	if (!bytes || bytes > npu->mem_bytes)
		return ERR_PTR(bytes ? -ENOMEM : -EINVAL);
	block = kzalloc(sizeof(*block), GFP_KERNEL_ACCOUNT);
	if (!block)
		return ERR_PTR(-ENOMEM);
	kref_init(&block->ref);
	mutex_init(&block->lock);
	block->npu = npu;
	block->bytes = PAGE_ALIGN(bytes);

	mutex_lock(&npu->lock);
	fits = insert(npu, block);
	mutex_unlock(&npu->lock);
	if (!fits) {
		kfree(block);
		return ERR_PTR(-ENOMEM);
	}
	return block;
}

/*
 * New memory for a client, or for the driver itself (NULL), with zeros in it.
 * Between npu_enter() and npu_exit(). An ERR_PTR: ENOMEM.
 */
struct npu_block *npu_block_new(struct npu *npu, struct npu_client *owner, u64 bytes)
{
	struct npu_block *block = npu_block_reserve(npu, bytes);
	int err;

	if (IS_ERR(block))
		return block;
	/* It contains data of another client, so no client may see it until it is cleared. */
	err = npu_zero(npu, block->address, block->bytes);
	if (err) {
		npu_block_put(block);
		return ERR_PTR(err);
	}
	mutex_lock(&npu->lock);
	block->owner = owner;
	mutex_unlock(&npu->lock);
	return block;
}

/* The block of this client that contains these bytes, or NULL. Under npu->lock. */
struct npu_block *npu_block_find(struct npu_client *client, u64 address, u64 bytes)
{
	struct rb_node *node = client->npu->blocks.rb_node;

	while (node) {
		struct npu_block *block = block_of(node);
		u64 offset = address - block->address;

		if (address < block->address) {
			node = node->rb_left;
		} else if (offset >= block->bytes) {
			node = node->rb_right;
		} else {
			if (block->owner != client || bytes > block->bytes - offset)
				return NULL;
			return block;
		}
	}
	return NULL;
}

void npu_block_get(struct npu_block *block)
{
	kref_get(&block->ref);
}

static void release(struct kref *ref)
{
	struct npu_block *block = container_of(ref, struct npu_block, ref);
	u64 i;

	rb_erase(&block->node, &block->npu->blocks);
	block->npu->free_bytes += block->bytes;
	for (i = 0; block->pages && i < block->bytes >> PAGE_SHIFT; i++)
		if (block->pages[i])
			put_page(block->pages[i]);
	kvfree(block->pages);
	mutex_destroy(&block->lock);
	kfree(block);
}

void npu_block_put_locked(struct npu_block *block)
{
	kref_put(&block->ref, release);
}

void npu_block_put(struct npu_block *block)
{
	struct npu *npu = block->npu;

	mutex_lock(&npu->lock);
	npu_block_put_locked(block);
	mutex_unlock(&npu->lock);
}

/*
 * A client has closed: free what no job uses now, the rest when its jobs have
 * ended. Under npu->lock.
 */
void npu_blocks_release(struct npu_client *client)
{
	struct rb_node *node = rb_first(&client->npu->blocks), *next;

	for (; node; node = next) {
		struct npu_block *block = block_of(node);

		next = rb_next(node);
		if (block->owner == client) {
			block->owner = NULL;
			npu_block_put_locked(block);
		}
	}
}

/* The page that replaces a page of device memory, with its contents, or NULL. Under block->lock. */
static struct page *stand_in(struct npu_block *block, pgoff_t index)
{
	struct page *page;

	if (!block->pages)
		block->pages = kvcalloc(block->bytes >> PAGE_SHIFT, sizeof(*block->pages), GFP_KERNEL);
	if (!block->pages)
		return NULL;
	if (!block->pages[index]) {
		page = alloc_page(GFP_KERNEL);
		if (!page)
			return NULL;
		if (npu_copy_from(block->npu, page_address(page),
				  block->address + ((u64)index << PAGE_SHIFT), PAGE_SIZE)) {
			put_page(page);
			return NULL;
		}
		block->pages[index] = page;
	}
	return block->pages[index];
}

static vm_fault_t npu_vm_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct npu_block *block = vma->vm_private_data;
	struct npu *npu = block->npu;
	u64 offset = ((u64)vmf->pgoff << PAGE_SHIFT) - block->address;
	vm_fault_t result = VM_FAULT_OOM;
	unsigned long pfn;
	struct page *page;

	if (offset >= block->bytes || npu_enter(npu))
		return VM_FAULT_SIGBUS;
	if (NO_WINDOW) {
		mutex_lock(&block->lock);
		page = stand_in(block, offset >> PAGE_SHIFT);
		if (page) {
			get_page(page);
			vmf->page = page;
			result = 0;
		}
		mutex_unlock(&block->lock);
	} else {
		pfn = (pci_resource_start(npu->pdev, NPU_BAR_MEMORY) + block->address + offset) >> PAGE_SHIFT;
		result = vmf_insert_pfn(vma, vmf->address, pfn);
	}
	npu_exit(npu);
	return result;
}

static void npu_vm_open(struct vm_area_struct *vma)
{
	struct npu_block *block = vma->vm_private_data;

	npu_get(block->npu);
	npu_block_get(block);
}

static void npu_vm_close(struct vm_area_struct *vma)
{
	struct npu_block *block = vma->vm_private_data;
	struct npu *npu = block->npu;

	npu_block_put(block);
	npu_put(npu);
}

static const struct vm_operations_struct npu_vm_ops = {
	.open = npu_vm_open,
	.close = npu_vm_close,
	.fault = npu_vm_fault,
};

static void set_flags(struct vm_area_struct *vma, unsigned long flags)
{
#ifdef NPU_HAS_VM_FLAGS_SET
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

int npu_block_mmap(struct npu_client *client, struct vm_area_struct *vma)
{
	struct npu *npu = client->npu;
	u64 bytes = vma->vm_end - vma->vm_start, address;
	struct npu_block *block;

	if (vma->vm_pgoff > U64_MAX >> PAGE_SHIFT || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	address = (u64)vma->vm_pgoff << PAGE_SHIFT;
	mutex_lock(&npu->lock);
	block = npu_block_find(client, address, bytes);
	if (block)
		npu_block_get(block);
	mutex_unlock(&npu->lock);
	if (!block)
		return -EACCES;

	npu_get(npu);
	vma->vm_private_data = block;
	vma->vm_ops = &npu_vm_ops;
	if (NO_WINDOW) {
		set_flags(vma, VM_DONTEXPAND | VM_DONTDUMP);
	} else {
		set_flags(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
		vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
	}
	return 0;
}

/* Unmap the window; the next access faults and maps it again. Under npu->lock. */
void npu_mappings_zap(struct npu *npu)
{
	struct npu_client *client;

	if (NO_WINDOW)
		return;
	list_for_each_entry(client, &npu->clients, link)
		unmap_mapping_range(client->mapping, 0, 0, 1);
}

/*
 * Synchronize mapped pages and device memory. Called between npu_enter() and
 * npu_exit() with a reference to the block. The range is within the block.
 */
int npu_block_sync(struct npu_block *block, u64 offset, u64 bytes, u32 direction)
{
	struct npu *npu = block->npu;
	u32 count = 0;
	int err = 0;

	if (!NO_WINDOW) {
		mb();	/* combined writes to the window have left; nothing is read early */
		npu_flush(npu);
		return 0;
	}
	mutex_lock(&block->lock);
	while (bytes && block->pages && !err) {
		u64 in_page = offset & ~PAGE_MASK, size = min_t(u64, bytes, PAGE_SIZE - in_page);
		struct page *page = block->pages[offset >> PAGE_SHIFT];

		if (page && direction == NPU_SYNC_TO_DEVICE)
			err = npu_copy_to(npu, block->address + offset, page_address(page) + in_page, size);
		else if (page)
			err = npu_copy_from(npu, page_address(page) + in_page, block->address + offset, size);
		offset += size;
		bytes -= size;
		if (++count % 32 == 0)	/* see npu_copy_to() */
			npu_flush(npu);
	}
	npu_flush(npu);
	mutex_unlock(&block->lock);
	return err;
}
