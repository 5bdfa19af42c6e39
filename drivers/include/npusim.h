/* SPDX-License-Identifier: MIT */
/* Made by python -m npusim.device.manual --header; docs/device.md says what it means. All little-endian. */
#ifndef NPUSIM_H
#define NPUSIM_H

#ifdef __KERNEL__
#include <linux/types.h>
#define NPU_U16 __le16
#define NPU_U32 __le32
#define NPU_U64 __le64
#else
#include <stdint.h>
#define NPU_U16 uint16_t
#define NPU_U32 uint32_t
#define NPU_U64 uint64_t
#endif

#define NPU_BAR_REGISTERS 0
#define NPU_BAR_MEMORY 2 /* device DRAM: offset = device address */
#define NPU_REGISTERS_BYTES 0x1000

#define NPU_ID 0x000 /* read only */

#define NPU_VERSION 0x004 /* read only */
#define NPU_VERSION_ISA 0x0000ffffu /* version of the instruction set */
#define NPU_VERSION_INTERFACE 0xffff0000u /* version of this map and of the ring */
#define NPU_VERSION_INTERFACE_SHIFT 16

#define NPU_CAP_UNITS 0x010 /* read only */
#define NPU_CAP_UNITS_CORES 0x000000ffu /* cores */
#define NPU_CAP_UNITS_DMA 0x0000ff00u /* DMA channels of a core */
#define NPU_CAP_UNITS_MATRIX 0x00010000u /* cores have a matrix unit */
#define NPU_CAP_UNITS_VECTOR 0x00020000u /* cores have a vector unit */
#define NPU_CAP_UNITS_SCALAR 0x00040000u /* cores have a scalar unit */
#define NPU_CAP_UNITS_DMA_SHIFT 8

#define NPU_CAP_MATRIX 0x014 /* read only */
#define NPU_CAP_MATRIX_ROWS 0x0000ffffu /* rows of the array */
#define NPU_CAP_MATRIX_COLS 0xffff0000u /* columns of the array */
#define NPU_CAP_MATRIX_COLS_SHIFT 16

#define NPU_CAP_VECTOR 0x018 /* read only */

#define NPU_CAP_SRAM_LO 0x01c /* read only */

#define NPU_CAP_SRAM_HI 0x020 /* read only */

#define NPU_CAP_ACC 0x024 /* read only */

#define NPU_CAP_DRAM_LO 0x028 /* read only */

#define NPU_CAP_DRAM_HI 0x02c /* read only */

#define NPU_CAP_CLOCK 0x030 /* read only */

#define NPU_CAP_QUEUE 0x034 /* read only */

#define NPU_CAP_CONTEXT_LO 0x038 /* read only */

#define NPU_CAP_CONTEXT_HI 0x03c /* read only */

#define NPU_CONTROL 0x040 /* write only */
#define NPU_CONTROL_RESET 0x00000001u /* drop all jobs and reset the registers; memory is kept */
#define NPU_CONTROL_CONTINUE 0x00000002u /* after a fault: drop its job, continue with the others */

#define NPU_STATUS 0x044 /* read only */
#define NPU_STATUS_READY 0x00000001u /* accepts jobs */
#define NPU_STATUS_BUSY 0x00000002u /* a job runs or is parked */
#define NPU_STATUS_FAULT 0x00000004u /* halted by a fault, see FAULT_CODE and CONTROL */
#define NPU_STATUS_FIRMWARE 0x00000008u /* waits for firmware, see FW_STATUS; accepts no jobs */
#define NPU_STATUS_COPY_FAULT 0x00000010u /* copies halted by a fault, see COPY_FAULT_CODE */

#define NPU_INT_STATUS 0x048 /* write 1 to clear */
#define NPU_INT_STATUS_DONE 0x00000001u /* a job has ended */
#define NPU_INT_STATUS_FAULT 0x00000002u /* the device or its copy engine is halted by a fault */
#define NPU_INT_STATUS_COPY 0x00000004u /* a copy with the flag RECORD has ended */

#define NPU_INT_MASK 0x04c /* read/write */
#define NPU_INT_MASK_DONE 0x00000001u /* a job has ended */
#define NPU_INT_MASK_FAULT 0x00000002u /* the device or its copy engine is halted by a fault */
#define NPU_INT_MASK_COPY 0x00000004u /* a copy with the flag RECORD has ended */

#define NPU_FAULT_CODE 0x050 /* read only */
#define NPU_FAULT_CODE_CODE 0x000000ffu /* 0: none; else one of the fault codes */

#define NPU_FAULT_ADDR_LO 0x054 /* read only */

#define NPU_FAULT_ADDR_HI 0x058 /* read only */

#define NPU_FAULT_RING 0x05c /* read only */
#define NPU_FAULT_RING_LOW 0x00000001u /* the fault was in this ring */
#define NPU_FAULT_RING_MEDIUM 0x00000002u /* the fault was in this ring */
#define NPU_FAULT_RING_HIGH 0x00000004u /* the fault was in this ring */

#define NPU_CONTEXT_BASE_LO 0x060 /* read/write */
#define NPU_CONTEXT_BASE_LO_ADDRESS 0xffffffc0u /* DRAM address of the context area, low word */
#define NPU_CONTEXT_BASE_LO_ADDRESS_SHIFT 6

#define NPU_CONTEXT_BASE_HI 0x064 /* read/write */

#define NPU_PREEMPT 0x068 /* read/write */
#define NPU_PREEMPT_ENABLE 0x00000001u /* enable preemption and latch CONTEXT_BASE; stays 0 if the context area does not fit */

#define NPU_ABORT_SEQNO_LO 0x070 /* read/write */

#define NPU_ABORT_SEQNO_HI 0x074 /* read/write */

#define NPU_ABORT 0x078 /* write only */
#define NPU_ABORT_GO 0x00000001u /* abort that job, if it has begun */

#define NPU_CAP_HOST 0x080 /* read only */
#define NPU_CAP_HOST_ADDRESS_BITS 0x000000ffu /* bits of a host address; 0: no access to host memory and no copies */
#define NPU_CAP_HOST_VECTORS 0x0000ff00u /* interrupt vectors; 0: one vector and no INT_ROUTE */
#define NPU_CAP_HOST_MODERATION 0x00010000u /* has INT_MODERATION */
#define NPU_CAP_HOST_FIRMWARE 0x00020000u /* needs a firmware image */
#define NPU_CAP_HOST_VECTORS_SHIFT 8

#define NPU_INT_ROUTE 0x084 /* read/write */
#define NPU_INT_ROUTE_LOW 0x0000000fu /* vector of this source */
#define NPU_INT_ROUTE_MEDIUM 0x000000f0u /* vector of this source */
#define NPU_INT_ROUTE_HIGH 0x00000f00u /* vector of this source */
#define NPU_INT_ROUTE_FAULT 0x0000f000u /* vector of this source */
#define NPU_INT_ROUTE_COPY 0x000f0000u /* vector of this source */
#define NPU_INT_ROUTE_MEDIUM_SHIFT 4
#define NPU_INT_ROUTE_HIGH_SHIFT 8
#define NPU_INT_ROUTE_FAULT_SHIFT 12
#define NPU_INT_ROUTE_COPY_SHIFT 16

#define NPU_INT_MODERATION 0x088 /* read/write */
#define NPU_INT_MODERATION_INTERVAL 0x00ffffffu /* minimum interval in ns between messages of a vector, except faults; 0: no moderation */
#define NPU_INT_MODERATION_COUNT 0xff000000u /* number of delayed messages that forces one; 0: no limit */
#define NPU_INT_MODERATION_COUNT_SHIFT 24

#define NPU_SEQNO_LO 0x0a0 /* read only */

#define NPU_SEQNO_HI 0x0a4 /* read only */

#define NPU_CYCLES_LO 0x0b0 /* read only */

#define NPU_CYCLES_HI 0x0b4 /* read only */

#define NPU_ECC_CORRECTED 0x0c0 /* read only */

#define NPU_ECC_UNCORRECTED 0x0c4 /* read only */

#define NPU_ECC_ADDR_LO 0x0c8 /* read only */

#define NPU_ECC_ADDR_HI 0x0cc /* read only */

#define NPU_ECC_WHERE 0x0d0 /* read only */
#define NPU_ECC_WHERE_MEMORY 0x00000003u /* memory of the last error: 0 DRAM, 1 SRAM, 2 accumulators */
#define NPU_ECC_WHERE_CORE 0x0000ff00u /* core of that SRAM or accumulators */
#define NPU_ECC_WHERE_CORE_SHIFT 8

#define NPU_CLOCK 0x0d4 /* read only */

#define NPU_LOW_BASE_LO 0x100 /* read/write */
#define NPU_LOW_BASE_LO_ADDRESS 0xffffffc0u /* address of the ring, low word */
#define NPU_LOW_BASE_LO_ADDRESS_SHIFT 6

#define NPU_LOW_BASE_HI 0x104 /* read/write */

#define NPU_LOW_SIZE 0x108 /* read/write */
#define NPU_LOW_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_LOW_HEAD 0x10c /* read only */

#define NPU_LOW_TAIL 0x110 /* read/write */

#define NPU_LOW_DOORBELL 0x114 /* write only */
#define NPU_LOW_DOORBELL_RING 0x00000001u /* latch TAIL of this ring and take its entries */

#define NPU_MEDIUM_BASE_LO 0x120 /* read/write */
#define NPU_MEDIUM_BASE_LO_ADDRESS 0xffffffc0u /* address of the ring, low word */
#define NPU_MEDIUM_BASE_LO_ADDRESS_SHIFT 6

#define NPU_MEDIUM_BASE_HI 0x124 /* read/write */

#define NPU_MEDIUM_SIZE 0x128 /* read/write */
#define NPU_MEDIUM_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_MEDIUM_HEAD 0x12c /* read only */

#define NPU_MEDIUM_TAIL 0x130 /* read/write */

#define NPU_MEDIUM_DOORBELL 0x134 /* write only */
#define NPU_MEDIUM_DOORBELL_RING 0x00000001u /* latch TAIL of this ring and take its entries */

#define NPU_HIGH_BASE_LO 0x140 /* read/write */
#define NPU_HIGH_BASE_LO_ADDRESS 0xffffffc0u /* address of the ring, low word */
#define NPU_HIGH_BASE_LO_ADDRESS_SHIFT 6

#define NPU_HIGH_BASE_HI 0x144 /* read/write */

#define NPU_HIGH_SIZE 0x148 /* read/write */
#define NPU_HIGH_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_HIGH_HEAD 0x14c /* read only */

#define NPU_HIGH_TAIL 0x150 /* read/write */

#define NPU_HIGH_DOORBELL 0x154 /* write only */
#define NPU_HIGH_DOORBELL_RING 0x00000001u /* latch TAIL of this ring and take its entries */

#define NPU_COPY_BASE_LO 0x160 /* read/write */
#define NPU_COPY_BASE_LO_ADDRESS 0xffffffc0u /* address of the ring, low word */
#define NPU_COPY_BASE_LO_ADDRESS_SHIFT 6

#define NPU_COPY_BASE_HI 0x164 /* read/write */

#define NPU_COPY_SIZE 0x168 /* read/write */
#define NPU_COPY_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_COPY_HEAD 0x16c /* read only */

#define NPU_COPY_TAIL 0x170 /* read/write */

#define NPU_COPY_DOORBELL 0x174 /* write only */
#define NPU_COPY_DOORBELL_RING 0x00000001u /* latch TAIL of this ring and take its entries */

#define NPU_COPY_FAULT_CODE 0x178 /* read only */
#define NPU_COPY_FAULT_CODE_CODE 0x000000ffu /* 0: none; else one of the fault codes */

#define NPU_COPY_FAULT_ADDR_LO 0x180 /* read only */

#define NPU_COPY_FAULT_ADDR_HI 0x184 /* read only */

#define NPU_FW_ADDR_LO 0x190 /* read/write */

#define NPU_FW_ADDR_HI 0x194 /* read/write */

#define NPU_FW_BYTES 0x198 /* read/write */

#define NPU_FW_BOOT 0x19c /* write only */
#define NPU_FW_BOOT_GO 0x00000001u /* check that image and start it */

#define NPU_FW_STATUS 0x1a0 /* read only */
#define NPU_FW_STATUS_STATE 0x0000000fu /* 0 none, 1 booting, 2 running; others: an error */

#define NPU_FW_VERSION 0x1a4 /* read only */
#define NPU_FW_VERSION_MINOR 0x0000ffffu /* minor version of the running firmware */
#define NPU_FW_VERSION_MAJOR 0xffff0000u /* major version of the running firmware */
#define NPU_FW_VERSION_MAJOR_SHIFT 16

#define NPU_ENTRY_MAGIC 0x4a4f4231u /* ring_entry.magic */
#define NPU_MOST_REGIONS 65520
#define NPU_COPY_MAGIC 0x43505931u /* copy_descriptor.magic */
#define NPU_FIRMWARE_MAGIC 0x4655504eu /* firmware_header.magic */
#define NPU_FIRMWARE_HEADER_VERSION 1
#define NPU_HOST_ADDRESS 0x8000000000000000ull /* with it an address is one of host memory */

/* bits of ring_entry.flags */
#define NPU_JOB_FLAG_TIMING_ONLY 1
#define NPU_JOB_FLAG_CANCELLED 2

/* bits of copy_descriptor.flags */
#define NPU_COPY_FLAG_RECORD 1

/* completion.status */
#define NPU_JOB_PENDING 0
#define NPU_JOB_DONE 1
#define NPU_JOB_FAULT 2
#define NPU_JOB_ABORTED 3

/* FW_STATUS.STATE */
#define NPU_FW_NONE 0
#define NPU_FW_BOOTING 1
#define NPU_FW_RUNNING 2
#define NPU_FW_BAD_ADDRESS 3
#define NPU_FW_BAD_HEADER 4
#define NPU_FW_BAD_VERSION 5
#define NPU_FW_BAD_SIZE 6
#define NPU_FW_BAD_CHECKSUM 7

/* completion.fault_code and register FAULT_CODE */
#define NPU_FAULT_CODE_NONE 0
#define NPU_FAULT_CODE_RING 1
#define NPU_FAULT_CODE_PROGRAM 2
#define NPU_FAULT_CODE_ADDRESS 3
#define NPU_FAULT_CODE_DATA 4
#define NPU_FAULT_CODE_DEADLOCK 5
#define NPU_FAULT_CODE_DMA 6
#define NPU_FAULT_CODE_INTERNAL 7
#define NPU_FAULT_CODE_HOST 8
#define NPU_FAULT_CODE_ECC 9

/* one job in a ring: 64 bytes */
struct npu_ring_entry {
	NPU_U32 magic;
	NPU_U32 flags;
	NPU_U64 program_address;
	NPU_U32 program_bytes;
	NPU_U32 region_count;
	NPU_U64 region_table;
	NPU_U64 seqno;
	NPU_U64 completion;
	NPU_U64 log;
	NPU_U32 log_bytes;
	NPU_U32 residents;
};

/* a row of a job's region table: where a region of its program lies: 16 bytes */
struct npu_region_row {
	NPU_U64 address;
	NPU_U64 bytes;
};

/* written by the device at the end of a job or copy: 32 bytes */
struct npu_completion {
	NPU_U64 seqno;
	NPU_U32 status;
	NPU_U32 fault_code;
	NPU_U64 fault_address;
	NPU_U64 cycles;
};

/* one copy in the ring of copies: 64 bytes */
struct npu_copy_descriptor {
	NPU_U32 magic;
	NPU_U32 flags;
	NPU_U64 source;
	NPU_U64 destination;
	NPU_U64 size;
	NPU_U64 seqno;
	NPU_U64 completion;
	NPU_U64 reserved;
	NPU_U64 reserved_2;
};

/* the first bytes of a firmware image: 32 bytes */
struct npu_firmware_header {
	NPU_U32 magic;
	NPU_U16 header_version;
	NPU_U16 header_bytes;
	NPU_U16 major;
	NPU_U16 minor;
	NPU_U32 payload_bytes;
	NPU_U32 payload_checksum;
	NPU_U32 header_checksum;
	NPU_U64 reserved;
};

#endif
