/* SPDX-License-Identifier: MIT */
/* Made by python -m npusim.device.manual --header; docs/device.md says what it means. All little-endian. */
#ifndef NPUSIM_H
#define NPUSIM_H

#ifdef __KERNEL__
#include <linux/types.h>
#define NPU_U32 __le32
#define NPU_U64 __le64
#else
#include <stdint.h>
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
#define NPU_CONTROL_RESET 0x00000001u /* drop all jobs and return to the reset state; memory stays */
#define NPU_CONTROL_CONTINUE 0x00000002u /* after a fault: drop its job, go on with the others */

#define NPU_STATUS 0x044 /* read only */
#define NPU_STATUS_READY 0x00000001u /* takes jobs */
#define NPU_STATUS_BUSY 0x00000002u /* a job runs or is parked */
#define NPU_STATUS_FAULT 0x00000004u /* stopped; FAULT_CODE says why; see CONTROL */

#define NPU_INT_STATUS 0x048 /* write 1 to clear */
#define NPU_INT_STATUS_DONE 0x00000001u /* a job has ended */
#define NPU_INT_STATUS_FAULT 0x00000002u /* the device has stopped with a fault */

#define NPU_INT_MASK 0x04c /* read/write */
#define NPU_INT_MASK_DONE 0x00000001u /* a job has ended */
#define NPU_INT_MASK_FAULT 0x00000002u /* the device has stopped with a fault */

#define NPU_FAULT_CODE 0x050 /* read only */
#define NPU_FAULT_CODE_CODE 0x000000ffu /* see timeline.FaultCode */

#define NPU_FAULT_ADDR_LO 0x054 /* read only */

#define NPU_FAULT_ADDR_HI 0x058 /* read only */

#define NPU_FAULT_RING 0x05c /* read only */
#define NPU_FAULT_RING_LOW 0x00000001u /* the fault was in this ring */
#define NPU_FAULT_RING_MEDIUM 0x00000002u /* the fault was in this ring */
#define NPU_FAULT_RING_HIGH 0x00000004u /* the fault was in this ring */

#define NPU_CONTEXT_BASE_LO 0x060 /* read/write */
#define NPU_CONTEXT_BASE_LO_ADDRESS 0xffffffc0u /* DRAM address to park jobs at, low word */
#define NPU_CONTEXT_BASE_LO_ADDRESS_SHIFT 6

#define NPU_CONTEXT_BASE_HI 0x064 /* read/write */

#define NPU_PREEMPT 0x068 /* read/write */
#define NPU_PREEMPT_ENABLE 0x00000001u /* a job of a higher class parks the one that runs, at CONTEXT_BASE as it is now; stays 0 if there is no room */

#define NPU_ABORT_FENCE_LO 0x070 /* read/write */

#define NPU_ABORT_FENCE_HI 0x074 /* read/write */

#define NPU_ABORT 0x078 /* write only */
#define NPU_ABORT_GO 0x00000001u /* end that job, if it runs or is parked */

#define NPU_ECC_CORRECTED 0x080 /* read only */

#define NPU_ECC_UNCORRECTED 0x084 /* read only */

#define NPU_ECC_ADDR_LO 0x088 /* read only */

#define NPU_ECC_ADDR_HI 0x08c /* read only */

#define NPU_ECC_WHERE 0x090 /* read only */
#define NPU_ECC_WHERE_MEMORY 0x00000003u /* of the last error: 0 DRAM, 1 SRAM, 2 accumulators */
#define NPU_ECC_WHERE_CORE 0x0000ff00u /* whose SRAM or accumulators */
#define NPU_ECC_WHERE_CORE_SHIFT 8

#define NPU_CLOCK 0x094 /* read only */

#define NPU_FENCE_LO 0x0a0 /* read only */

#define NPU_FENCE_HI 0x0a4 /* read only */

#define NPU_CYCLES_LO 0x0b0 /* read only */

#define NPU_CYCLES_HI 0x0b4 /* read only */

#define NPU_LOW_BASE_LO 0x100 /* read/write */
#define NPU_LOW_BASE_LO_ADDRESS 0xffffffc0u /* DRAM address of the ring, low word */
#define NPU_LOW_BASE_LO_ADDRESS_SHIFT 6

#define NPU_LOW_BASE_HI 0x104 /* read/write */

#define NPU_LOW_SIZE 0x108 /* read/write */
#define NPU_LOW_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_LOW_HEAD 0x10c /* read only */

#define NPU_LOW_TAIL 0x110 /* read/write */

#define NPU_LOW_DOORBELL 0x114 /* write only */
#define NPU_LOW_DOORBELL_RING 0x00000001u /* take over this ring's TAIL and look for work */

#define NPU_MEDIUM_BASE_LO 0x120 /* read/write */
#define NPU_MEDIUM_BASE_LO_ADDRESS 0xffffffc0u /* DRAM address of the ring, low word */
#define NPU_MEDIUM_BASE_LO_ADDRESS_SHIFT 6

#define NPU_MEDIUM_BASE_HI 0x124 /* read/write */

#define NPU_MEDIUM_SIZE 0x128 /* read/write */
#define NPU_MEDIUM_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_MEDIUM_HEAD 0x12c /* read only */

#define NPU_MEDIUM_TAIL 0x130 /* read/write */

#define NPU_MEDIUM_DOORBELL 0x134 /* write only */
#define NPU_MEDIUM_DOORBELL_RING 0x00000001u /* take over this ring's TAIL and look for work */

#define NPU_HIGH_BASE_LO 0x140 /* read/write */
#define NPU_HIGH_BASE_LO_ADDRESS 0xffffffc0u /* DRAM address of the ring, low word */
#define NPU_HIGH_BASE_LO_ADDRESS_SHIFT 6

#define NPU_HIGH_BASE_HI 0x144 /* read/write */

#define NPU_HIGH_SIZE 0x148 /* read/write */
#define NPU_HIGH_SIZE_ENTRIES 0x0001ffffu /* a power of two, 1 to 65536 */

#define NPU_HIGH_HEAD 0x14c /* read only */

#define NPU_HIGH_TAIL 0x150 /* read/write */

#define NPU_HIGH_DOORBELL 0x154 /* write only */
#define NPU_HIGH_DOORBELL_RING 0x00000001u /* take over this ring's TAIL and look for work */

#define NPU_ENTRY_MAGIC 0x4a4f4231u /* ring_entry.magic */
#define NPU_MOST_REGIONS 65520

/* bits of ring_entry.flags */
#define NPU_JOB_FLAG_TIMING_ONLY 1
#define NPU_JOB_FLAG_WITHDRAWN 2

/* completion.status */
#define NPU_JOB_PENDING 0
#define NPU_JOB_DONE 1
#define NPU_JOB_FAULT 2
#define NPU_JOB_ABORTED 3

/* completion.fault_code and register FAULT_CODE */
#define NPU_FAULT_CODE_NONE 0
#define NPU_FAULT_CODE_RING 1
#define NPU_FAULT_CODE_PROGRAM 2
#define NPU_FAULT_CODE_ADDRESS 3
#define NPU_FAULT_CODE_DATA 4
#define NPU_FAULT_CODE_DEADLOCK 5
#define NPU_FAULT_CODE_DMA 6
#define NPU_FAULT_CODE_INTERNAL 7
#define NPU_FAULT_CODE_ECC 8

/* one job in a ring: 64 bytes */
struct npu_ring_entry {
	NPU_U32 magic;
	NPU_U32 flags;
	NPU_U64 program_address;
	NPU_U32 program_bytes;
	NPU_U32 region_count;
	NPU_U64 region_table;
	NPU_U64 fence;
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

/* written by the device at the end of a job: 32 bytes */
struct npu_completion {
	NPU_U64 fence;
	NPU_U32 status;
	NPU_U32 fault_code;
	NPU_U64 fault_address;
	NPU_U64 cycles;
};

#endif
