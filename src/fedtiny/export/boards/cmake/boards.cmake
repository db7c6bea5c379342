# The core and the memory of each board; add yours.
set(HEAP_SIZE 4K) # for printing; the model has no heap
set(STACK_SIZE 4K)
if(BOARD STREQUAL "mps2-an386") # QEMU's Cortex-M4F
  set(CPU -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard)
  set(FLASH_START 0x00000000)
  set(FLASH_SIZE 4M)
  set(RAM_START 0x20000000)
  set(RAM_SIZE 4M)
elseif(BOARD STREQUAL "mps2-an500") # QEMU's Cortex-M7
  set(CPU -mcpu=cortex-m7 -mfpu=fpv5-d16 -mfloat-abi=hard)
  set(FLASH_START 0x00000000)
  set(FLASH_SIZE 4M)
  set(RAM_START 0x20000000)
  set(RAM_SIZE 4M)
else()
  message(FATAL_ERROR "BOARD must be one of boards.cmake: mps2-an386 or mps2-an500, or one that you add")
endif()
