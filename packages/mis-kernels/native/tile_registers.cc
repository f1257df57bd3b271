// Permission to use the tile registers of AMX.

#include <sys/syscall.h>
#include <unistd.h>

// Asks the system to let this process use tile registers; 0 if it may. See arch_prctl(2), ARCH_REQ_XCOMP_PERM.
extern "C" long mis_request_tile_registers() {
#if defined(MIS_EMULATED_AMX)
  return 0;
#elif defined(__aarch64__)
  return -1;  // there are none
#else
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData);
#endif
}
