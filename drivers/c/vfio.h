/* SPDX-License-Identifier: MIT */
/* A client of the vfio-user protocol: a PCI function at the other end of a Unix socket. One thread at a time. */
#ifndef NPU_VFIO_H
#define NPU_VFIO_H

#include <stddef.h>
#include <stdint.h>

enum { VFIO_CONFIG = 7 }; /* the region that is configuration space; 0 to 5 are BARs */
enum { VFIO_INTX, VFIO_MSI, VFIO_MSIX };

struct vfio {
	int socket;
	uint16_t number;	/* of the last message */
	int broken;		/* an errno: nothing can be said any more */
};

/* All return 0, or a negative errno; -EPIPE if the server is gone. */
int vfio_open(struct vfio *vfio, const char *path);
void vfio_close(struct vfio *vfio);
int vfio_reset(struct vfio *vfio);
/* 1, 2, 4 or 8 bytes of a region. */
int vfio_read(struct vfio *vfio, uint32_t region, uint64_t offset, uint32_t size, uint64_t *value);
int vfio_write(struct vfio *vfio, uint32_t region, uint64_t offset, uint32_t size, uint64_t value);
/* A region as memory, as much of it as there is, unmapped with munmap(). */
int vfio_map(struct vfio *vfio, uint32_t region, void **memory, size_t *size);
/* From here on a vector is signalled on an eventfd. */
int vfio_set_irq(struct vfio *vfio, uint32_t kind, uint32_t vector, int eventfd);

#endif
