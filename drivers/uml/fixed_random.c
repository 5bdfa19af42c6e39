/* The same "random" bytes in every run: what a User Mode Linux kernel draws from its host. Preloaded into the kernel. */
#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

/* splitmix64 (Steele, Lea and Flood, OOPSLA 2014): every state has one successor, and no seed is a bad one. */
static uint64_t next(void)
{
	static uint64_t state;
	uint64_t z = (state += 0x9E3779B97F4A7C15u);

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

ssize_t getrandom(void *buffer, size_t size, unsigned int flags)
{
	unsigned char *bytes = buffer;

	(void)flags;
	for (size_t i = 0; i < size; i++)
		bytes[i] = (unsigned char)next();
	return (ssize_t)size;
}
